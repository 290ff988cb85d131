"""The command line as users meet it: real processes, exit codes, streams."""

from __future__ import annotations

import argparse
import json
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import forked_commands
import pytest
from commands import PROGRAM, Done, torchproof

import torchproof as package
from torchproof.cli import verbs
from torchproof.records import store
from torchproof.records.run import Run

OUTPUT = {"--format", "-o", "-q", "-v", "--no-source"}
FLAGS = {
    "": {"-h", "--help", "--version"},
    "check": {"-h", "--help", "TARGET", "--list", "--compile", "--as-written"}
    | {"--train", "--device", "--size", "--timeout", "--effort", "--skip"}
    | {"--select", "--ignore", "--fail-on", "--baseline"}
    | {"--ranks", "--launcher", "--wrap", "--trace"}
    | OUTPUT,
    "bench": {"-h", "--help", "TARGET", "--compile", "--as-written", "--train"}
    | {"--device", "--size", "--timeout", "--strategies", "--modes", "--latency"}
    | {"--guards", "--ablate", "--backends", "--dtype", "--batch", "--sequence"}
    | {"--seconds", "--repeats", "--profile", "--baseline", "--ranks", "--wrap"}
    | {"--effort", "--trace", "--steps-only"}
    | OUTPUT,
    "loadtest": {"-h", "--help", "TARGET", "--compile", "--as-written", "--train"}
    | {"--device", "--size", "--timeout", "--strategies", "--rate", "--arrivals"}
    | {"--duration", "--requests", "--slo", "--find-rate", "--seed", "--workers"}
    | {"--batch-window", "--max-batch", "--no-cold", "--baseline", "--prompt-tokens"}
    | {"--output-tokens", "--temperature", "--slots", "--queue-limit", "--price"}
    | {"--trace"}
    | OUTPUT,
    "tune": {"-h", "--help", "TARGET", "--compile", "--as-written", "--train"}
    | {"--device", "--size", "--timeout", "--strategies", "--objective", "--budget"}
    | {"--min-gain", "--effort", "--recipe", "--overwrite", "--resume", "--ray"}
    | {"--ranks", "--wrap"}
    | OUTPUT,
    "fix": {"-h", "--help", "TARGET", "--compile", "--as-written", "--train"}
    | {"--device", "--size", "--timeout", "--effort", "--select", "--unsafe"}
    | {"--write", "--patch"}
    | OUTPUT,
    "pack": {"-h", "--help", "TARGET | RUN", "--for", "--select", "--effort"}
    | {"--minify", "--budget", "--include", "--recipe", "--strategy", "--artifact"}
    | {"--key", "--compile", "--as-written", "--train", "--device", "--size"}
    | {"--ranks", "--wrap"}
    | {"--timeout", "-o", "--overwrite", "--format", "-q", "-v"},
    "compare": {"-h", "--help", "A", "B", "--threshold"} | OUTPUT - {"--no-source"},
    "show": {"-h", "--help", "RUN", "--list", "--caches", "--clear"} | OUTPUT,
    "log": {"-h", "--help", "add | plan | retrospective", "RUN | TEXT | PLAN"}
    | {"--file", "--list", "--expect", "--target", "--again"},
    "rule": {"-h", "--help", "CODE"},
    "mcp": {"-h", "--help", "--directory"},
    "doctor": {"-h", "--help"} | OUTPUT - {"--no-source"},
    "completion": {"-h", "--help", "bash | zsh | fish", "--line"},
}
PUBLIC = ["Finding", "PackRefused", "Run", "UserError", "apply_patches", "bench"]
PUBLIC += [
    "check",
    "compare",
    "compile",
    "fix",
    "graph",
    "host_call",
    "host_value",
    "in_graph",
    "load",
    "loadtest",
    "on_host",
    "pack",
    "plan",
    "raise_if",
    "retry",
    "status",
    "step",
    "tune",
]

# The contract of schema 1: fields may be added, never renamed or removed.
RUN_FIELDS = ["schema", "id", "target", "strategy", "environment", "counts"]
RUN_FIELDS += ["findings", "measurements", "parts", "configuration", "baseline"]
RUN_FIELDS += ["options", "tuning", "fixes", "fixing", "load_test", "ranks"]
RUN_FIELDS += ["verb", "command", "started", "ending", "exit_code", "error", "calls"]
COUNT_FIELDS = ["calls", "compiled_calls", "graphs", "graph_breaks"]
COUNT_FIELDS += ["skipped_frames", "recompiles", "cudagraph_skips"]
COUNT_FIELDS += ["cudagraph_recordings", "cudagraph_replays", "cudagraph_pool_bytes"]
COUNT_FIELDS += ["cudagraph_kernel_share"]
FINDING_FIELDS = ["code", "kind", "category", "severity", "message", "cause", "fix"]
FINDING_FIELDS += ["file", "line", "function", "owner", "origin", "count", "steps"]
FINDING_FIELDS += ["cost_us", "status", "evidence", "column", "end_column", "source"]
FINDING_FIELDS += ["context", "context_from", "suspects", "marks", "identity"]
FINDING_FIELDS += ["cause_of", "consequences", "because", "certainty", "gain"]
FINDING_FIELDS += ["ranks", "step", "waited_s", "key", "stops"]
PARTS = ["static", "breaks", "baseline", "batch", "sequence", "latency"]
PARTS += ["guards", "lifetimes"]

NOISY = """
import torch

print("imported")

def step(x, scale):
    y = x * scale
    if y.sum().item() > 0:
        return y + 1
    return y - 1

def clean(x):
    return x * 2

def make():
    return step, [(torch.ones(2), 1.5), (torch.ones(2), 2.5), (torch.ones(2), 3.5)]

def make_clean():
    return clean, [(torch.ones(2),)] * 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli")
    (root / "noisy.py").write_text(NOISY)
    return root


@pytest.fixture(scope="module")
def live(folder: Path) -> Done:
    """A check that finds something, as JSON; torch writes its trace beside it."""
    return torchproof(
        *("check", "noisy.py:make", "--format", "json", "--effort", "quick"),
        cwd=folder,
        variables={"TORCH_TRACE": str(folder / "trace")},
    )


@pytest.fixture(scope="module")
def trace(live: Done, folder: Path) -> Path:
    """A folder to check without torch: the same findings, in no time."""
    assert live.returncode == 1, live.stderr
    return folder


# -- no torch, and fast ----------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("saved")
    run = Run("20260102-0304-a", "a.py", "full", {}, {})
    store.save(run, root / store.RUNS)
    return root


LIGHT = ["--help", "--version", "check --help", "tune --help", "check --list", "rule"]
LIGHT += ["rule GB101", "show", "show --list", "show --format json", "show --format md"]
LIGHT += ["show --caches", "show --caches --format json"]
LIGHT += ["compare 20260102 20260102-0304-a", "log", "log add 20260102"]
LIGHT += ["completion bash", "doctor --help"]


# One process for all lines, as each start of Python takes longer than they do.
RUNS_LIGHT = """
import contextlib, io, json, sys
from torchproof.cli import main

def answer(line):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(line.split())
        except SystemExit as end:
            code = end.code
    return code or 0, out.getvalue(), err.getvalue(), "torch" in sys.modules

print(json.dumps({line: answer(line) for line in json.loads(sys.argv[1])}))
"""


@pytest.fixture(scope="module")
def light(saved: Path) -> dict[str, tuple[int, str, str, bool]]:
    """Exit code, both streams and whether torch was imported, of each light line."""
    done = subprocess.run(
        [sys.executable, "-c", RUNS_LIGHT, json.dumps(LIGHT)],
        cwd=saved,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, tuple[int, str, str, bool]] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("line", LIGHT)
def test_torch_is_not_imported(
    line: str, light: dict[str, tuple[int, str, str, bool]]
) -> None:
    code, out, err, imports_torch = light[line]
    assert code == 0, err
    assert out and not err
    assert not imports_torch, f"by `torchproof {line}` or an earlier line"


def test_help_answers_at_once(tmp_path: Path) -> None:
    """In seconds of CPU time, which other programs on the machine disturb least."""

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    seconds = []
    for _ in range(10):
        start = used()
        assert torchproof("--help", cwd=tmp_path).returncode == 0
        seconds.append(used() - start)
        if seconds[-1] < 0.3:
            break
    assert min(seconds) < 0.3


# -- frozen lists ----------------------------------------------------------------------


def test_flags_are_the_agreed_ones() -> None:
    top = verbs._parser()
    (actions,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    parsers = {"": top, **actions.choices}
    assert {name: _flags(parser) for name, parser in parsers.items()} == FLAGS


def test_a_verb_alone_has_the_same_flags() -> None:
    for name in FLAGS:
        if name:
            top = verbs._parser(name)
            (actions,) = (
                a for a in top._actions if isinstance(a, argparse._SubParsersAction)
            )
            (parser,) = actions.choices.values()
            assert _flags(parser) == FLAGS[name]


def _flags(parser: argparse.ArgumentParser) -> set[str]:
    found: set[str] = set()
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            found |= set(action.option_strings) or {str(action.metavar)}
    return found


def test_public_names_are_the_agreed_ones() -> None:
    assert package.__all__ == PUBLIC
    assert [getattr(package, name).__name__ for name in PUBLIC] == PUBLIC
    with pytest.raises(AttributeError, match="'bake'"):
        package.bake  # noqa: B018


def test_version_is_that_of_the_package(tmp_path: Path) -> None:
    done = torchproof("--version", cwd=tmp_path)
    assert done.stdout == f"torchproof {package.__version__}\n"


# -- a check ---------------------------------------------------------------------------


def test_json_is_one_document_with_the_fields_of_the_contract(live: Done) -> None:
    run = json.loads(live.stdout)
    assert sorted(run) == sorted(RUN_FIELDS)
    assert list(run["counts"]) == COUNT_FIELDS
    assert list(run["parts"]) == PARTS
    fields = ["again_s", "seconds", "status", "why"]
    assert all(sorted(part) == fields for part in run["parts"].values())
    assert run["schema"] == 1 and run["measurements"] == []
    assert {"torch", "python", "device"} <= set(run["environment"])
    for finding in run["findings"]:
        assert sorted(finding) == sorted(FINDING_FIELDS)
    worst = run["findings"][0]
    assert (worst["code"], worst["severity"], worst["line"]) == ("GB101", "high", 8)
    assert worst["file"] == "noisy.py" and worst["cost_us"] is None
    assert worst["function"] == "step" and worst["owner"] == "user"
    assert run["counts"]["calls"] == run["counts"]["compiled_calls"] == 3
    said = "torchproof check noisy.py:make --format json --effort quick"
    assert run["command"] == said


def test_a_finding_is_exit_1_and_the_targets_output_goes_to_stderr(live: Done) -> None:
    assert live.returncode == 1
    assert "imported" in live.stderr.splitlines()
    assert "imported" not in live.stdout


def test_a_run_is_saved_and_shown_again(live: Done, trace: Path) -> None:
    run = json.loads(live.stdout)
    shown = forked_commands.torchproof("show", run["id"], "--format", "json", cwd=trace)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, live.stdout, "")
    listed = forked_commands.torchproof("show", "--list", "--format", "json", cwd=trace)
    assert run["id"] in [row["id"] for row in json.loads(listed.stdout)]
    text = forked_commands.torchproof("show", run["id"], cwd=trace).stdout
    assert "noisy.py:8" in text and "GB101 high" in text and "\x1b" not in text


def test_a_broken_run_does_not_hide_the_others(live: Done, folder: Path) -> None:
    broken = folder / store.RUNS / "20200101-0000-broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    done = forked_commands.torchproof("show", "--list", cwd=folder)
    assert done.returncode == 0 and json.loads(live.stdout)["id"] in done.stdout
    assert "20200101-0000-broken/run.json" in done.stderr


def test_a_clean_target_is_exit_0(folder: Path) -> None:
    line = ["check", "noisy.py:make_clean", "-q", "--effort", "quick"]
    done = forked_commands.torchproof(*line, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    first = done.stdout.partition("\n")[0]
    assert re.match(r"2 calls .*noisy\.py:make_clean .*\bcpu\b.*\btorch \d", first)
    assert not re.search(r"\b[A-Z]{2}\d{3}\b", done.stdout), "a code of a finding"


@pytest.fixture
def inside(trace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In that folder, with commands that run in this process."""
    monkeypatch.chdir(trace)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.usefixtures("inside")
def test_select_and_ignore_take_codes_and_prefixes(
    live: Done, capsys: pytest.CaptureFixture[str]
) -> None:
    every = {finding["code"] for finding in json.loads(live.stdout)["findings"]}
    assert {"GB101"} < every and any(code.startswith("RC") for code in every)
    for flags, kept in [
        (["--select", "GB101"], {"GB101"}),
        (["--select", "rc"], {code for code in every if code.startswith("RC")}),
        (["--ignore", "GB"], {code for code in every if not code.startswith("GB")}),
        (["--select", "GB,RC", "--ignore", "RC"], {"GB101"}),
    ]:
        verbs.main(["check", "trace:trace", "--format", "json", *flags])
        run = json.loads(capsys.readouterr().out)
        assert {finding["code"] for finding in run["findings"]} == kept, flags
        # What is not selected is still counted.
        assert run["counts"]["graph_breaks"] == 1


@pytest.mark.usefixtures("inside")
def test_fail_on_decides_the_exit_code(live: Done, trace: Path) -> None:
    findings = json.loads(live.stdout)["findings"]
    for codes in ("GB", "RC"):
        found = {f["severity"] for f in findings if f["code"].startswith(codes)}
        for level, bad in {
            "high": {"high"},
            "medium": {"high", "medium"},
            "low": {"high", "medium", "low"},
            "never": set[str](),
        }.items():
            line = ["check", "trace:trace", "--select", codes, "--fail-on", level]
            assert verbs.main(line) == bool(found & bad), line
    line = ["check", "trace:trace", "--ignore", "GB,RC", "--fail-on", "low"]
    done = forked_commands.torchproof(*line, cwd=trace)
    assert done.returncode == 0
    assert re.search(rf"\b{len(findings)} .*--select.*--ignore", done.stdout)


def test_skip_leaves_a_part_out_and_says_so(trace: Path) -> None:
    line = ["check", "trace:trace", "--skip", "breaks, static", "--format", "json"]
    run = json.loads(forked_commands.torchproof(*line, cwd=trace).stdout)
    assert run["findings"] == []
    for name in ("static", "breaks"):
        assert run["parts"][name]["status"] == "skipped"
        assert "--skip" in run["parts"][name]["why"]
    assert set(run["counts"].values()) == {None}


def test_parts_that_were_not_done_are_never_passed(live: Done) -> None:
    parts = json.loads(live.stdout)["parts"]
    assert parts.pop("breaks")["status"] == "found"
    assert parts.pop("static")["status"] in {"passed", "found"}
    assert {part["status"] for part in parts.values()} == {"skipped"}
    assert all(part["why"] for part in parts.values())


def test_output_goes_to_a_file_that_did_not_exist(trace: Path) -> None:
    line = ["check", "trace:trace", "--format", "json", "-o", "out.json"]
    done = forked_commands.torchproof(*line, cwd=trace)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(" out.json\n") and done.stderr.count("\n") == 1
    before = (trace / "out.json").read_bytes()
    assert json.loads(before)["target"] == "trace:trace"
    done = forked_commands.torchproof(*line, cwd=trace)
    assert done.returncode == 2 and "out.json" in done.stderr
    assert (trace / "out.json").read_bytes() == before


def test_a_reader_that_stops_early_is_no_error(trace: Path) -> None:
    program = " ".join(PROGRAM)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{program} rule | head -n 1"],
        cwd=trace,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
