"""The JSON of a run is checked when it is read: a line with the place, exit code 2.

Then files that once ended in a traceback, or wrote where they must not: each was found
by benchmarks/fuzz_files.py.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from torchproof.records import Mark, Remedy, Replacement, Setting, schema, store
from torchproof.records.run import (
    CompileSite,
    Finding,
    Measurement,
    Part,
    Run,
    UserError,
)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fuzz_documents import (  # noqa: E402
    EDITED,
    FIXED,
    run_documents,
    saved_runs,
)
from benchmarks.fuzz_engine import judge, ran  # noqa: E402
from benchmarks.fuzz_mutations import written  # noqa: E402
from torchproof.measure.loadtest import timetable  # noqa: E402
from torchproof.runtime import keys  # noqa: E402
from torchproof.strategies import recipe  # noqa: E402

CHECK, BENCH, TUNE, STATIC, NO_ROWS = run_documents()
SAVED = saved_runs()
FORMATS = ("text", "json", "md", "html", "sarif", "github", "gitlab", "agent")


def put(document: dict[str, Any], path: str, text: str) -> str:
    """The document as JSON, with a text in the place of a value."""
    plain = json.loads(json.dumps(document))
    *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    holder = plain
    for step in way:
        holder = holder[step]
    holder[last] = "HERE"
    return json.dumps(plain).replace('"HERE"', text)


def refused(answer: Any, words: Sequence[str], said: str) -> None:
    code, out, err = answer(*words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("torchproof: error: ") and "bad.json" in err and said in err


BAD = {
    "an integer of 5000 digits": ("counts/calls", "9" * 5000, "counts.calls"),
    "a negative one of them": ("counts/calls", "-" + "9" * 5000, "counts.calls"),
    "text for a time": ("measurements/0/median_ms", '"abc"', "[0].median_ms: "),
    "NaN for a time": ("measurements/1/p95_ms", "NaN", "measurements[1].p95_ms"),
    "infinity": ("measurements/0/low_ms", "1e999", "measurements[0].low_ms"),
    "text among samples": ("measurements/0/rounds_ms/2/1", '"x"', "rounds_ms[2][1]"),
    "null among samples": ("measurements/0/rounds_ms/2/1", "null", "rounds_ms[2][1]"),
    "no samples in a round": ("measurements/0/rounds_ms/2", "[]", "rounds_ms[2]"),
    "true for a number": ("measurements/0/samples", "true", "measurements[0].samples"),
    "a list for the environment": ("environment", "[]", "environment: "),
    "an object for torch": ("environment/torch", "{}", "environment.torch"),
    "a number for variables": ("environment/variables", "3", "environment.variables"),
    "text for counts": ("counts", '"x"', "counts: "),
    "a list in counts": ("counts/calls", "[]", "counts.calls"),
    "an object in counts": ("counts/calls", '{"a": 1}', "counts.calls"),
    "a number for started": ("started", "5", "started: "),
    "null for a target": ("target", "null", "target: "),
    "a list for a part": ("parts", '{"breaks": []}', "parts.breaks"),
    "an odd status": ("parts", '{"a": {"status": "x"}}', "parts.a.status: "),
    "findings that are text": ("findings", '"x"', "findings: "),
    "a finding of no kind": ("findings", '[{"kind": "x"}]', "findings[0].code"),
    "an odd variant": ("measurements/0/variant", '{"batch": []}', "variant.batch"),
    "notes that are text": ("measurements/0/notes", '"abc"', "measurements[0].notes"),
    "a name with a dot": ("counts", '{"a.b": "x"}', 'counts["a.b"]'),
    "an odd trial": ("baseline", '{"measurements": [{}]}', "measurements[0].strategy"),
}


def test_wrong_value_is_named(answer: Any) -> None:
    file = Path("bad.json")
    Path("sound.json").write_text(json.dumps(BENCH))
    for path, text, said in BAD.values():
        file.write_text(put(BENCH, path, text))
        refused(answer, ["show", "bad.json"], said)
    refused(answer, ["compare", "sound.json", "bad.json"], said)


@pytest.mark.parametrize("levels", [100, 200_000])
@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a": ', "}")])
def test_deep_nesting_is_refused(
    *, levels: int, before: str, after: str, answer: Any
) -> None:
    text = before * levels + "1" + after * levels
    Path("bad.json").write_text(put(CHECK, "options", text))
    refused(answer, ["show", "bad.json"], "nest")


def test_every_verb_that_reads_a_run_refuses_it(answer: Any) -> None:
    Path("bad.json").write_text(put(CHECK, "measurements/0/median_ms", '"x"'))
    Path("model.py").write_text("import torch\n")
    said = "measurements[0].median_ms"
    for line in (
        "check model.py --effort static -q --baseline bad.json",
        "bench model.py:make -q --baseline bad.json",
        "pack bad.json --for repro -q",
        "log add bad.json",
    ):
        refused(answer, line.split(), said)
    assert sorted(os.listdir()) == ["bad.json", "model.py"]
    Path(".torchproof/runs/20260101-bad.json").mkdir(parents=True)
    Path("bad.json").rename(".torchproof/runs/20260101-bad.json/run.json")
    code, _, err = answer("show", "--list")
    assert code == 0 and said in err


@pytest.mark.parametrize("document", [NO_ROWS, STATIC, TUNE], ids=["bench", "a", "b"])
def test_empty_run_is_shown(document: dict[str, Any], answer: Any) -> None:
    Path("run.json").write_text(json.dumps(document))
    for format in FORMATS:
        code, out, err = answer("show", "run.json", "--format", format)
        assert (code, err) == (0, "") and out


def values(kind: type) -> dict[str, Any]:
    """A record of a kind that fits, from the documents."""
    rows = {Finding: CHECK["findings"][0], CompileSite: CHECK["configuration"][0]}
    rows |= {Measurement: CHECK["measurements"][1], Part: CHECK["parts"]["breaks"]}
    return dict(rows.get(kind, CHECK))


@pytest.mark.parametrize("kind", [Run, Finding, CompileSite, Measurement, Part])
def test_no_field_of_a_record_is_left_unchecked(kind: type) -> None:
    """So that a field which is added is checked as well."""
    schema.check(kind, values(kind))
    for field in dataclasses.fields(kind):
        if field.name == "other":
            continue
        found = []
        for wrong in ([1], {"a": []}, 1.5, "x", True, -1):
            try:
                schema.check(kind, values(kind) | {field.name: wrong})
            except schema.Mismatch as error:
                found.append(str(error))
        assert len(found) >= 3, field.name
        assert all(said.startswith(field.name) for said in found), found
    schema.check(kind, values(kind) | {"of_a_newer_torchproof": {"a": [None]}})


def test_published_runs_still_load() -> None:
    kept = list((ROOT / "benchmarks" / "results").rglob("*.json"))
    plain = {path: json.loads(path.read_text()) for path in kept}
    runs = [p for p, d in plain.items() if isinstance(d, dict) and "schema" in d]
    assert len(runs) >= 10
    for path in runs:
        assert store.read(path).to_json()["id"] == plain[path]["id"]


def test_older_records_are_read(answer: Any) -> None:
    older = {**BENCH["measurements"][0], "sittings": [3, 5]}
    del older["repeats"]
    row = Measurement.from_json(older)
    assert row.repeats == (3, 5) and "sittings" not in row.to_json()
    with pytest.raises(schema.Mismatch, match="sittings"):
        schema.check(Measurement, older | {"sittings": "x"})
    # An infinite error of an answer is written as null.
    error = "measurements/0/numerics/max_rel_error"
    Path("a.json").write_text(put(BENCH, error, "Infinity"))
    code, out, _ = answer("show", "a.json", "--format", "json")
    shown = json.loads(out, parse_constant=pytest.fail)
    assert code == 0
    assert shown["measurements"][0]["numerics"]["max_rel_error"] is None


# -- found by the fuzzer ---------------------------------------------------------------

PAIR = "fixes/0/receipt/breaks"
HTML = ("show", "run.json", "--format", "html")
COMPARE = ("compare", "run.json", "sound.json")
WRITE = ("fix", "run.json", "--write")
PATCH = ("fix", "run.json", "--patch", "patches")
LOG = ("log", "add", "run.json")
RESULT = "load_test/results/0"
# A document, the path of a value in it, another value, a command, and its exit code.
CASES: dict[str, tuple[dict[str, Any], str, Any, tuple[str, ...], int]] = {
    "counts of counts": (CHECK, "counts/graphs", {"a": 1}, LOG, 2),
    "functions and no ranks": (CHECK, "ranks/ranks", [], ("show", "run.json"), 0),
    "a spread beyond floats": (BENCH, "measurements/1/luck", 1e29, COMPARE, 0),
    "a pair of one": (SAVED["fix"], PAIR, [1], ("show", "run.json"), 2),
    "too few ends": (SAVED["loadtest"], f"{RESULT}/requests/end_s", [1.0], HTML, 2),
    "no such request": (SAVED["loadtest"], f"{RESULT}/requests/failed", [99], HTML, 2),
    "a limit of zero": (SAVED["loadtest"], "load_test/objective/limit_ms", 0, HTML, 0),
    "a rate without requests": (SAVED["loadtest"], "command", "x", COMPARE, 2),
    "no such setting": (SAVED["fix"], "fixes/1/settings/0/name", "x", WRITE, 1),
    "half a character": (
        *(SAVED["fix"], "fixes/0/replacements/0/file", "\ud800", WRITE, 1),
    ),
    "half of one to write": (
        *(SAVED["fix"], "fixes/0/replacements/0/new", ["\ud800\n"], WRITE, 2),
    ),
    "half of one in a patch": (SAVED["fix"], "target", "\ud800", PATCH, 1),
    "an id with a NUL": (SAVED["fix"], "id", "a\0", WRITE, 2),
    "an id out of the folder": (SAVED["fix"], "id", "../../../beside", WRITE, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_value_has_a_plain_answer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, path, value, command, expected = CASES[name]
    here = tmp_path / "a" / "b" / "c"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    Path("model.py").write_bytes(FIXED)
    Path("sound.json").write_text(written(document))
    Path("run.json").write_text(put(document, path, json.dumps(value)))
    code, out, err = ran(command)
    judge(name, command, code, out=out, err=err)
    assert code == expected, err
    assert Path("model.py").read_bytes() in (FIXED, EDITED)
    assert [*tmp_path.iterdir()] == [tmp_path / "a"]
    assert [*(tmp_path / "a").iterdir()] == [tmp_path / "a" / "b"]


@pytest.mark.parametrize(
    "line", ["x = 0x" + "f" * 5000, "x = 1979-05-27T07:32:00Z", 'target = ""']
)
def test_recipe_that_is_read_can_be_written(line: str) -> None:
    text = f'schema = 1\nstrategy = "full"\n{line}\n'
    try:
        read = recipe.loads(text)
    except UserError as error:
        assert "300 digits" in str(error)
    else:
        assert recipe.loads(read.dumps()) == read


@pytest.mark.parametrize("time", ["9" * 400, "1e300", "1e13"])
def test_a_request_of_the_far_future_is_refused(time: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.txt"
    path.write_text(f'{{"time": {time}}}\n')
    with pytest.raises(UserError, match=r"requests\.txt:1"):
        timetable.read_trace(str(path))
    path.write_text('{"time": 1763400000.5}\n')
    assert timetable.read_trace(str(path)).arrival_s == (0.0,)


def test_a_key_of_an_unknown_algorithm_is_refused() -> None:
    der = bytes.fromhex("302a300506032b65650321") + bytes(33)
    text = base64.b64encode(der).decode()
    key = f"-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n".encode()
    with pytest.raises(UserError, match="Ed25519"):
        keys.public_key(key)


@pytest.mark.parametrize(
    "remedy",
    [
        None,
        Remedy("mark", marks=(Mark("x", 0, "mark_dynamic"),)),
        Remedy("setting", settings=(Setting("dynamo.capture_scalar_outputs", True),)),
        Remedy("patch", replacements=(Replacement("lib.py", 3, ("a",), ("b", "c")),)),
        Remedy("upgrade", version="2.15"),
        Remedy("none", why="a C function"),
    ],
)
def test_a_remedy_is_read_as_it_was_written(remedy: Remedy | None) -> None:
    finding = Finding("GB101", "graph_break", "high", "m", "c", "f", remedy=remedy)
    assert Finding.from_json(json.loads(json.dumps(finding.to_json()))) == finding
