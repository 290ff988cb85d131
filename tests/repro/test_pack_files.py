"""The files of a repro pack: report, versions, logs, graphs."""

import ast
import dataclasses
import subprocess
import sys
from collections.abc import Callable

import pytest

from torchproof.packs.repro import pack_files, versions
from torchproof.packs.repro import readme as report
from torchproof.packs.repro.assembly import ORACLES, repro_text
from torchproof.packs.repro.candidate import (
    Candidate,
    Outcome,
    PackFile,
    Settings,
    VerifiedRepro,
)
from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.packs.repro.programs.scopes import Globals

SOURCE = """import torch


def make():
    def f(x):
        print("x")
        return x + 1

    return f, [(torch.ones(2),)]
"""
SYMPTOM = FailureSignature(
    kind="graph_break",
    oracle="breaks",
    headline="Graph break: a builtin that Dynamo does not know",
    expected={"id": "GB0059"},
    ids=("GB0059",),
    search="builtin print & graph break",
)
FACTS = {
    "torch": "2.13.0+cpu",
    "python": "3.11.7",
    "device": "cpu",
    "libraries": {"torch": "2.13.0"},
    "variables": {"TORCH_LOGS": "+dynamo"},
    "configs": {"torch._dynamo.config": {"recompile_limit": 3}},
}
WRITTEN = VerifiedRepro(
    signature=SYMPTOM,
    settings=Settings(compile={"backend": "eager"}),
    candidate=Candidate("program", SOURCE, "the code that is reached", 5),
    first=Candidate("program", SOURCE, "the file", 40),
    outcome=Outcome(
        "same", "FAILS AS STATED: GB0059", 3.21, "a\n```\nGB0059\n", "GB0059"
    ),
    repro=SOURCE,
    facts=FACTS,
    versions=versions.text(FACTS, "PyTorch version: 2.13.0+cpu\n"),
    command="torchproof pack net.py:make --for repro",
    target="net.py:make",
    minified=True,
)


def readme(written: VerifiedRepro = WRITTEN, **counts: int) -> str:
    files = {"graphs/a.py": PackFile(b"abc", "a | b"), "repro.py": PackFile(b"", "it")}
    return report.report(written, files, counts)


def test_report_has_the_fields_of_the_form(
    snapshot: Callable[[str, str], None],
) -> None:
    """As torch's form for a bug has them; what did not happen is left out."""
    snapshot("repro/report.md", readme(secret=2))
    bare = dataclasses.replace(SYMPTOM, ids=(), search="")
    same = dataclasses.replace(WRITTEN, first=WRITTEN.candidate, signature=bare)
    snapshot("repro/bare_report.md", readme(same))
    long = dataclasses.replace(WRITTEN.candidate, source="x = 1\n" * 61)
    assert "```python" not in readme(dataclasses.replace(WRITTEN, candidate=long))


def test_the_code_in_the_report_runs_as_it_stands() -> None:
    code = readme().split("```python\n")[1].split("```")[0]
    program = (
        f"import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n{FAKE}"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program + code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "eager\nx\n", done.stderr


FAKE = """
import torch
torch.ones = lambda size: size
torch.compile = lambda fn, backend: print(backend) or fn
"""


def test_facts_of_the_repetition_come_before_those_of_the_run() -> None:
    run = {"torch": "2.12.0", "python": "3.11.7"}
    lines = "Nvidia driver version: 550.54.15\nModel name:    Neoverse-N1\n"
    facts = versions.collect_facts(run, {"torch": "2.13.1"}, lines)
    assert facts["torch"] == "2.13.1" and facts["python"] == "3.11.7"
    assert facts["driver"] == "550.54.15" and facts["cpu"] == "Neoverse-N1"
    lines = "Nvidia driver version: Could not collect\n"
    assert versions.collect_facts(run, {}, lines)["driver"] is None


def test_the_header_can_stand_in_a_docstring() -> None:
    odd = dataclasses.replace(SYMPTOM, search='x """ \\q')
    header = pack_files.header(odd, FACTS | {"cpu": 'a """ \\q'})
    text = repro_text(WRITTEN.candidate, SYMPTOM, WRITTEN.settings, header)
    docstring = ast.get_docstring(ast.parse(text)) or ""
    assert "torch 2.13.0+cpu" in docstring and "gb0059" in docstring


@pytest.mark.parametrize("oracle", ORACLES)
def test_a_repro_defines_all_that_its_oracle_uses(oracle: str) -> None:
    signature = dataclasses.replace(SYMPTOM, oracle=oracle)
    text = repro_text(WRITTEN.candidate, signature, WRITTEN.settings)
    assert Globals(ast.parse(text)).undefined() <= {"__name__"}
    assert "torchproof" not in text


def test_graphs_of_one_origin_get_files_of_their_own() -> None:
    graph = Candidate("graph", SOURCE, "operations", 3, origin="0/0")
    found = pack_files.files(WRITTEN, [graph, graph])
    assert {"graphs/graph_0_0.py", "graphs/graph_0_0_1.py"} <= set(found)
    assert "logs/torch.txt" in found
    silent = dataclasses.replace(WRITTEN, outcome=Outcome("same", "FAILS", 1.0))
    assert "logs/torch.txt" not in pack_files.files(silent, [])
