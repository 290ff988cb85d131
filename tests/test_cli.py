"""The command line as users meet it: real processes, exit codes, streams."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import check_runs
import forked_commands
import pytest
import report_runs
from check_runs import ITEM, READ, SIZE, check
from commands import PROGRAM, Done, run, torchproof

import torchproof as package
from torchproof.cli import exit_codes, output
from torchproof.cli.commands import Bench, Check
from torchproof.records import UserError, store
from torchproof.records.run import Part, Run
from torchproof.report import render_comparison

Answer = tuple[int, str, str]  # exit code, stdout, stderr
# The contract of a check's JSON: fields may be added, never renamed or removed.
COUNT_FIELDS = ["calls", "compiled_calls", "graphs", "graph_breaks"]
COUNT_FIELDS += ["skipped_frames", "recompiles", "cudagraph_skips"]
COUNT_FIELDS += ["cudagraph_recordings", "cudagraph_replays", "cudagraph_pool_bytes"]
COUNT_FIELDS += ["cudagraph_kernel_share"]
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
LIGHT += ["completion bash", "doctor --help", "mcp --help"]
# What the parent process of each verb loads.
PARENTS = ["api", "checking.checker", "cli.verbs", "doctor.examination", "fixing"]
PARENTS += ["measure.session", "observe.capture", "packs.writing", "report.formats"]
PARENTS += ["strategies.plan", "targets.target", "tuning"]


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
    return code or 0, out.getvalue(), err.getvalue(), heavy()

def heavy():
    return bool({"torch", "mcp", "pydantic"} & sys.modules.keys())

answers = {line: answer(line) for line in json.loads(sys.argv[1])}
for name in json.loads(sys.argv[2]):
    __import__(f"torchproof.{name}")
    answers[name] = 0, name, "", heavy()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def light(saved: Path) -> dict[str, tuple[int, str, str, bool]]:
    """Exit code, both streams and whether torch or the SDK of MCP was imported."""
    lines = json.dumps(LIGHT), json.dumps(PARENTS)
    done = run([sys.executable, "-c", RUNS_LIGHT, *lines], saved)
    assert done.returncode == 0, done.stderr
    answers: dict[str, tuple[int, str, str, bool]] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("line", [*LIGHT, *PARENTS])
def test_torch_and_the_sdk_are_not_imported(
    line: str, light: dict[str, tuple[int, str, str, bool]]
) -> None:
    code, out, err, imports_torch = light[line]
    assert code == 0, err
    assert out and not err
    assert not imports_torch, f"by {line} or an earlier one"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'bake'"):
        package.bake  # noqa: B018


# -- a check ---------------------------------------------------------------------------


def test_json_of_a_check_has_the_fields_of_the_contract(live: Done) -> None:
    run = json.loads(live.stdout)
    assert list(run["counts"]) == COUNT_FIELDS
    assert run["schema"] == 1 and run["measurements"] == []
    assert {"torch", "python", "device"} <= set(run["environment"])
    worst = run["findings"][0]
    assert (worst["code"], worst["severity"], worst["line"]) == ("GB101", "high", 8)
    assert (worst["file"], worst["function"]) == ("noisy.py", "step")
    assert run["counts"]["calls"] == run["counts"]["compiled_calls"] == 3
    command = "torchproof check noisy.py:make --format json --effort quick"
    assert run["command"] == command
    parts = {name: part["status"] for name, part in run["parts"].items()}
    assert list(parts) == PARTS
    assert parts.pop("breaks") == "found"
    assert parts.pop("static") in {"passed", "found"}
    assert set(parts.values()) == {"skipped"}, "what was not done is never passed"


def test_output_of_the_target_goes_to_stderr(live: Done) -> None:
    assert live.returncode == 1
    assert "imported" in live.stderr.splitlines()
    assert "imported" not in live.stdout


def test_clean_target_is_exit_0(folder: Path) -> None:
    line = ["check", "noisy.py:make_clean", "-q", "--effort", "quick"]
    done = forked_commands.torchproof(*line, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def inside(
    trace: Path, answer: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    """Runs commands in that folder and in this process."""
    monkeypatch.chdir(trace)
    return answer


def test_run_is_saved_and_shown_again(
    live: Done, inside: Callable[..., Answer]
) -> None:
    run_id = json.loads(live.stdout)["id"]
    assert inside("show", run_id, "--format", "json") == (0, live.stdout, "")
    broken = Path(store.RUNS) / "20200101-0000-broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    code, out, err = inside("show", "--list", "--format", "json")
    assert code == 0 and run_id in [row["id"] for row in json.loads(out)]
    assert "20200101-0000-broken/run.json" in err


def test_select_and_ignore_take_codes_and_prefixes(
    live: Done, inside: Callable[..., Answer]
) -> None:
    every = {finding["code"] for finding in json.loads(live.stdout)["findings"]}
    assert {"GB101"} < every and any(code.startswith("RC") for code in every)
    for selection, left in [
        (["--select", "GB101"], {"GB101"}),
        (["--select", "rc"], {code for code in every if code.startswith("RC")}),
        (["--ignore", "GB"], {code for code in every if not code.startswith("GB")}),
        (["--select", "GB,RC", "--ignore", "RC"], {"GB101"}),
    ]:
        line = ["check", "trace:trace", "--format", "json", *selection]
        run = json.loads(inside(*line)[1])
        assert {finding["code"] for finding in run["findings"]} == left, selection
        assert run["counts"]["graph_breaks"] == 1, "what is not selected is counted"


def test_output_is_never_overwritten(inside: Callable[..., Answer]) -> None:
    line = ["check", "trace:trace", "--format", "json", "-o", "out.json"]
    code, out, err = inside(*line)
    assert (code, out, err.count("\n")) == (1, "", 1)
    before = Path("out.json").read_bytes()
    assert json.loads(before)["target"] == "trace:trace"
    assert inside(*line)[0] == 2
    assert Path("out.json").read_bytes() == before


def test_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    pipe = f"{' '.join(PROGRAM)} rule | head -n 1"
    done = run(["bash", "-o", "pipefail", "-c", pipe], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


# -- exit codes, and what follows a report ---------------------------------------------


def code_of(verb: Callable[[], int]) -> int:
    """As the command line ends."""
    try:
        return verb()
    except UserError:
        return 2


FAILED = {"breaks": Part("failed", "no reason that a finding tells")}


@pytest.mark.parametrize(
    ("run", "fail_on", "code"),
    [
        (check(ITEM), "high", 1),
        (check(SIZE), "high", 0),
        (check(SIZE), "medium", 1),
        (check(READ), "low", 1),
        (check(ITEM), "never", 0),
        (check(check_runs.WANTED, check_runs.GONE), "low", 0),
        (check(), "low", 0),
        (check(parts={"batch": Part("skipped", "no keyword")}), "low", 0),
        (check(parts=FAILED), "low", 2),
        (check(parts=FAILED), "never", 2),
        (check(replace(ITEM, kind="compile_error"), parts=FAILED), "never", 0),
        (check(ITEM, parts=FAILED), "low", 1),
        (check(ITEM, error="code 3"), "low", 2),
        (check(ITEM, ending="timeout"), "low", 2),
        (check(ITEM, ending="interrupted"), "low", 130),
    ],
)
def test_exit_code_of_a_check(run: Run, fail_on: str, code: int) -> None:
    options = Check(fail_on=fail_on, timeout_s=3.0)
    assert code_of(lambda: exit_codes.check_code(run, options)) == code


@pytest.mark.parametrize(
    ("regressions", "uncompared", "code"),
    [((), (), 0), (("speed",), (), 1), (("speed",), ("full",), 1), ((), ("full",), 2)],
)
def test_exit_code_of_a_comparison(
    regressions: tuple[str, ...], uncompared: tuple[str, ...], code: int
) -> None:
    found = SimpleNamespace(regressions=regressions, uncompared=uncompared)
    assert code_of(lambda: exit_codes.comparison_code(found)) == code


@pytest.mark.parametrize("format", ["html", "sarif", "github", "gitlab"])
def test_no_text_follows_a_document(
    format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Bench(target="model.py:make", format=format, quiet=True)
    compared = report_runs.comparison()
    output.show(report_runs.RUNS["bench"], options, compared)
    after = capsys.readouterr().out.rpartition("</html>")[2].splitlines()
    words = render_comparison(compared, "text").splitlines()
    assert not set(filter(None, words)) & set(after)
