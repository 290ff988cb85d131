"""Reading finds what the programs mark, and running them shows that it is true."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import every_program
import numpy as np
import pytest
import torch

from torchproof.checking import rules
from torchproof.checking.suspicions import Suspicion, read
from torchproof.records.run import Finding

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
EXECUTED = every_program.PROGRAMS
BROKEN = {"graph_break", "skipped_frame", "recompile", "recompile_limit"}
MARK = re.compile(r"# <- (\w+(?:, \w+)*)$")
# Sizes that change are compiled again, in clean programs too.
OF_SIZES = ("RC201", "RC202")
# True before this version of torch only.
ENDED = {"RC214": (2, 14)}


def marked(program: Path) -> set[tuple[str, int]]:
    found = set()
    for number, line in enumerate(program.read_text().splitlines(), 1):
        if match := MARK.search(line):
            found |= {(code, number) for code in match[1].split(", ")}
    return found


def suspicions(program: Path) -> list[Suspicion]:
    return list(read([program]).suspicions)


def shows(finding: Finding, suspicion: Suspicion) -> bool:
    """A break on its line; what belongs to the function as a whole, anywhere in it."""
    suspected = suspicion.finding
    if not finding.code.startswith(suspicion.shown_by):
        return False
    if finding.kind in ("graph_break", "skipped_frame"):
        return (suspected.line or 0) <= (finding.line or 0) <= suspicion.last_line
    return True


def applies(suspicion: Suspicion) -> bool:
    version = tuple(int(n) for n in torch.__version__.split(".")[:2])
    return version < ENDED.get(suspicion.finding.code, (99, 0))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_reading_gives_the_marked_lines_and_no_other(program: Path) -> None:
    found = {(s.finding.code, s.finding.line) for s in suspicions(program)}
    assert found == marked(program)
    assert bool(found) == ("_bad" in program.stem)


@pytest.fixture(scope="module")
def run(observe: Any) -> Callable[[str], list[Finding]]:
    """`run(factory)`: the findings of many programs in one run."""

    @cache
    def found(factory: str) -> list[Finding]:
        observation = observe(f"{every_program.__file__}:{factory}", as_written=True)
        assert observation.error is None
        return rules.check(observation)

    return found


@pytest.mark.parametrize(
    ("factory", "program"),
    [
        pytest.param("make_quick", path, id=path.stem)
        if every_program.is_quick(path)
        else pytest.param("make_others", path, id=path.stem, marks=pytest.mark.slow)
        for path in EXECUTED
    ],
)
def test_a_run_shows_what_was_read(
    factory: str, program: Path, run: Callable[[str], list[Finding]]
) -> None:
    findings = [f for f in run(factory) if f.file and Path(f.file).name == program.name]
    told = "\n".join(f"{f.code} {f.kind} {f.line} {f.message}" for f in findings)
    wanted = [s for s in suspicions(program) if applies(s)]
    for suspicion in wanted:
        found = any(shows(finding, suspicion) for finding in findings)
        assert found, f"{suspicion.finding.message}\nthe run has:\n{told}"
    if not wanted:
        loud = [f for f in findings if f.kind in BROKEN and f.code not in OF_SIZES]
        assert not loud, told


def test_compiled_code_keeps_the_environment_and_ignores_numpys_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = next(p for p in PROGRAMS if p.stem == "environment_bad")
    every = every_program.loaded(program).every
    compiled = torch.compile(every, backend="eager")
    x = torch.zeros(4)
    before = compiled(x)
    monkeypatch.setenv("TORCHPROOF_SHIFT", "1")
    assert every(x).min() >= 100
    assert compiled(x).max() < 100 and before.max() < 100

    def seeded(function: Any) -> torch.Tensor:
        np.random.seed(3)
        return function(x)

    assert torch.equal(seeded(every), seeded(every))
    assert not torch.equal(seeded(compiled), seeded(compiled))


def test_a_program_without_torch_gives_nothing(tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text("def forward(x):\n    print(x.item())\n")
    assert suspicions(program) == []


def test_a_comment_says_that_a_line_is_meant_so(tmp_path: Path) -> None:
    program = tmp_path / "meant.py"
    lines = [
        "import torch",
        "class Net(torch.nn.Module):",
        "    def forward(self, x):",
        "        print(x)  # torchproof: ignore[GB104]",
        "        print('# torchproof: ignore[GB104]')",
        "        return x.sum().item()  # torchproof: ignore[GB104]",
    ]
    program.write_text("\n".join(lines) + "\n")
    found = [(s.finding.code, s.finding.line) for s in suspicions(program)]
    assert found == [("GB104", 5), ("GB101", 6)]


def test_a_class_that_compiles_its_parts_is_not_read_as_compiled(
    tmp_path: Path,
) -> None:
    program = tmp_path / "parts.py"
    program.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.body = torch.compile(torch.nn.Linear(4, 4))\n"
        "    def forward(self, x):\n"
        "        print(x)\n"
        "        return self.body(x)\n"
    )
    assert [s for s in suspicions(program) if s.finding.code == "GB104"] == []


def test_an_expanded_tensor_is_shown_in_the_function_that_is_given_it() -> None:
    program = next(p for p in PROGRAMS if p.stem == "stride_bad")
    [found] = [s for s in suspicions(program) if s.finding.code == "RC204"]
    assert found.finding.function == "Model.forward"
    assert found.shown_in == ("Rotary.forward",)
