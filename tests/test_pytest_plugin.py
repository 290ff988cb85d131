"""The pytest plugin as users meet it: their tests, in a pytest of their own."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import forked_commands
import pytest
from commands import run

from torchproof.checking.budget import Budget
from torchproof.records.run import Finding, Run, UserError

ROOT = Path(__file__).resolve().parent.parent

# backend="eager" throughout: Inductor's import warns, and here a warning is an error.
CASES = Path(__file__).parent / "models" / "budgeted.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plugin")
    shutil.copy(CASES, root / "test_cases.py")
    page = (ROOT / "docs" / "ci.md").read_text()
    (example,) = re.findall(
        r"^```python\n# file: test_step.py\n(.*?)^```$", page, re.M | re.S
    )
    (root / "test_step.py").write_text(example)
    return root


# pytest-benchmark, where it is installed, warns beside xdist.
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:benchmark")


def run_pytest(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", *PLUGINS, *arguments]
    done = run(command, folder, {"CUDA_VISIBLE_DEVICES": ""})
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def output(folder: Path) -> str:
    # Dynamo asks every tensor for .grad, and Inductor uses what torch warns of.
    grad = "ignore:The .grad attribute of a Tensor:UserWarning"
    script = "ignore:`torch.jit.script:DeprecationWarning"
    forked = "ignore::pytest.PytestAssertRewriteWarning"  # it was imported before
    line = ["-W", "error", "-W", forked, "-W", grad, "-W", script]
    line += ["--strict-markers", "-v", *PLUGINS, "test_cases.py", "test_step.py"]
    done = forked_commands.python(f"import pytest; pytest.main({line})", cwd=folder)
    return done.stdout + done.stderr


def test_outcome_of_every_test(
    output: str, snapshot: Callable[[str, str], None]
) -> None:
    """Also of those on the page; a failure is one sentence."""
    outcomes = dict(re.findall(r"^(test_\w+\.py::\S+) ([A-Z]+)", output, re.M))
    said = re.findall(
        r"^(?:compile|latency)_(?:budget|check)[ :(](?!=).*$", output, re.M
    )
    sentences = [re.sub(r"\d+\.\d+|\d+(?= ms)", "N", line) for line in said]
    lines = [*map(" ".join, outcomes.items()), *sentences]
    snapshot("pytest_plugin.txt", "\n".join(lines) + "\n")


def section(output: str, heading: str) -> str:
    return output.partition(f"torchproof, {heading}")[2].partition("\n____")[0]


def test_findings_and_load_tests_are_sections(output: str) -> None:
    over = section(output, "test_cases.py::test_over")
    assert all(fact in over for fact in ("3 of 3 calls", "graphs 1", "breaks 1"))
    place = CASES.read_text().splitlines().index("        if y.sum() > 100:") + 1
    assert f"test_cases.py:{place}:12  GB102 high" in over
    assert "if y.sum() > 100:" in over and "fix: " in over
    check = section(output, "Net")
    assert re.search(r"^2 calls .*\bNet\b.*\bcpu\b", check, re.M)
    assert "GB102 high" in check
    load = section(output, "pause")
    assert "200 requests/s" in load and "p50 at most 0.5 ms" in load
    assert "show" not in over + load  # there is no saved run to show
    assert "torch.__trace" not in output
    own = re.search(r"^_+ test_own_failure _+\n(.*?)^_", output, re.M | re.S)
    assert own and "AssertionError" in own[1] and "torchproof, " not in own[1]


# -- without a test that uses it -------------------------------------------------------


def test_it_is_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = project["entry-points"]["pytest11"]
    assert said == {"torchproof": "torchproof.pytest_plugin"}
    found = {e.name: e.value for e in entry_points(group="pytest11")}
    assert found.get("torchproof") == said["torchproof"], "install the package again"


def test_unused_it_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_sessionfinish():\n"
        "    mine = [m for m in sys.modules if m.split('.')[0] == 'torchproof']\n"
        "    print('LOADED', sorted(mine), 'torch' in sys.modules)\n"
    )
    (tmp_path / "test_empty.py").write_text("def test_empty():\n    pass\n")
    text = run_pytest(tmp_path, "-s", "-q")
    loaded = "['torchproof', 'torchproof.pytest_plugin'] False"
    assert f"LOADED {loaded}" in text, text


def test_what_it_comes_with_is_not_rewritten_by_pytest() -> None:
    assert (
        "rewrite" not in type(sys.modules["torchproof.records"].__loader__).__module__
    )
    assert "rewrite" in type(sys.modules[__name__].__loader__).__module__  # tests are


# -- the budget itself -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({}, r"compile_budget .*graph_breaks=0"),
        ({"compiled": False}, "graph_breaks=0"),
        ({"graph_breaks": "0"}, r"compile_budget\(graph_breaks='0'\)"),
        ({"graph_breaks": True}, r"\(graph_breaks=True\)"),
        ({"recompiles": -1}, r"\(recompiles=-1\)"),
        ({"graphs": 0}, r"\(graphs=0\).*compiled=False"),
        ({"graphs": 1, "compiled": 1}, r"compiled=1\).*True.*False"),
        ({"speed": 3}, r"\bspeed\b.* graph_breaks, recompiles, "),
    ],
)
def test_what_a_budget_cannot_be_is_said(named: dict[str, object], why: str) -> None:
    with pytest.raises(UserError, match=why):
        Budget.of([((), named)])
    with pytest.raises(UserError, match="graph_breaks=0"):
        Budget.of([((0,), {})])  # it takes names only


def test_only_open_findings_count_by_severity() -> None:
    def finding(severity: str, status: str) -> Finding:
        return Finding("GB1", "graph_break", severity, "", "", "", status=status)  # type: ignore[arg-type]

    found = (finding("high", "intentional"), finding("low", "open"))
    counts = {"graphs": 1, "graph_breaks": 2, "cudagraph_skips": None}
    checked = Run("", "t", "full", {}, counts, findings=found)
    for limits, said in (
        ({"high": 0, "medium": 0, "low": 1, "findings": 1}, None),
        ({"low": 0}, "compile_budget(low=0): 1 "),
        ({"findings": 0}, "compile_budget(findings=0): 1 "),
        ({"graph_breaks": 2}, None),
        ({"graph_breaks": 1}, "compile_budget(graph_breaks=1): 2 "),
    ):
        broken = Budget.of([((), limits)]).broken_by(checked)
        assert (broken or "").startswith(said or "") and bool(broken) == bool(said)
    nothing = Run("", "t", "full", {}, {"graphs": 0, "graph_breaks": 0})
    assert Budget.of([((), {"high": 0})]).broken_by(nothing)


@pytest.mark.slow
def test_generated_code_targets_and_xdist(folder: Path) -> None:
    (folder / "test_slow.py").write_text(
        """
from test_cases import X, Net, budget, clean
import torch
from torchproof.observe.in_process import TransparentObserver as _Watcher
from torch._inductor.utils import run_and_get_code


@budget(graphs=1, generate_code=True)
def test_generated():
    result, code = run_and_get_code(torch.compile(clean), X)
    assert code and torch.equal(result, X * 2)


@budget(graphs=1)
def test_not_generated():
    result, code = run_and_get_code(torch.compile(clean), X)
    assert not code and torch.equal(result, X * 2)


# Without a GPU Inductor leaves every CUDA graph out, and counts that.
_Watcher.records_graphs = True


@budget(cudagraph_skips=0)
def test_skipped():
    torch.compile(clean, mode="reduce-overhead")(X)


@budget(cudagraph_skips=0)
def test_not_skipped():
    torch.compile(clean)(X)


@budget(graph_breaks=0)
def test_target(compile_check):
    run = compile_check("target.py:make", dynamic=True)
    assert run.counts["calls"] == 1
"""
    )
    (folder / "target.py").write_text(
        "from test_cases import X, Net\ndef make():\n    return Net(), [(X,)]\n"
    )
    text = run_pytest(folder, "test_slow.py", "-n", "1")
    assert "3 passed" in text and "2 failed" in text, text
    assert "compile_budget(cudagraph_skips=0): 1 " in text
    assert re.search(r"compile_budget\(graph_breaks=0\): 1 .* target\.py:make", text)
