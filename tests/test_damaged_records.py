"""Files that once ended in a traceback, or wrote where they must not.

Each was found by benchmarks/fuzz_files.py: a sound document with one value replaced.
"""

from __future__ import annotations

import base64
import copy
import sys
from pathlib import Path
from typing import Any

import pytest

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
from torchproof.records import UserError  # noqa: E402
from torchproof.runtime import keys  # noqa: E402
from torchproof.strategies import recipe  # noqa: E402

CHECK, BENCH = run_documents()[:2]
SAVED = saved_runs()
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


def replaced(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(document)
    holder = changed
    *parents, last = [int(p) if p.isdigit() else p for p in path.split("/")]
    for name in parents:
        holder = holder[name]
    assert holder[last] is not value
    holder[last] = value
    return changed  # type: ignore[no-any-return]


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
    Path("run.json").write_text(written(replaced(document, path, value)))
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
