"""Reading finds what the programs mark, and running them shows that it is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import every_program
import numpy as np
import pytest
import torch
from rule_programs import marked

from torchproof.checking import rules
from torchproof.checking.suspicions import Suspicion, read

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def suspicions(program: Path) -> list[Suspicion]:
    return list(read([program]).suspicions)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_reading_gives_the_marked_lines_and_no_other(program: Path) -> None:
    found = {(s.finding.code, s.finding.line) for s in suspicions(program)}
    assert found == marked(program, "read:")
    assert bool(found) == ("_bad" in program.stem)


@pytest.mark.parametrize(
    "group", ["quick", pytest.param("others", marks=pytest.mark.slow)]
)
def test_a_run_gives_the_marked_lines_and_no_other(group: str, observe: Any) -> None:
    """Lines marked `read:` are suspected and not shown, those marked `run:` shown."""
    target = f"{every_program.__file__}:make_{group}"
    observation = observe(target, as_written=True)
    assert observation.error is None
    found: dict[str, set[tuple[str, int | None]]] = {}
    for finding in rules.check(observation):
        name = Path(finding.file or "").name
        found.setdefault(name, set()).add((finding.code, finding.line))
    programs = every_program.GROUPS[group]
    assert programs
    assert {p.name: found.get(p.name, set()) for p in programs} == {
        p.name: marked(p, "run:") for p in programs
    }


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
