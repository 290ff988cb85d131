"""Reading finds what the programs mark, and running them shows that it is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import every_program
import pytest
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


def test_a_run_gives_the_marked_lines_and_no_other(observe: Any) -> None:
    """Lines marked `read:` are suspected and not shown, those marked `run:` shown."""
    observation = observe(f"{every_program.__file__}:make", as_written=True)
    assert observation.error is None
    found: dict[str, set[tuple[str, int | None]]] = {}
    for finding in rules.check(observation):
        name = Path(finding.file or "").name
        found.setdefault(name, set()).add((finding.code, finding.line))
    programs = every_program.PROGRAMS
    assert {p.name: found.get(p.name, set()) for p in programs} == {
        p.name: marked(p, "run:") for p in programs
    }


SMALL = {
    "without torch": ("def forward(x):\n    print(x.item())\n", set()),
    "a comment on a line": (
        """\
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        print(x)  # torchproof: ignore[GB104]
        print('# torchproof: ignore[GB104]')
        return x.sum().item()  # torchproof: ignore[GB104]
""",
        {("GB104", 5), ("GB101", 6)},
    ),
    "a class that compiles its parts": (
        """\
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.compile(torch.nn.Linear(4, 4))
    def forward(self, x):
        print(x)
        return self.body(x)
""",
        set(),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_what_is_not_compiled_or_is_ignored_gives_nothing(
    name: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    text, expected = SMALL[name]
    program.write_text(text)
    assert {(s.finding.code, s.finding.line) for s in suspicions(program)} == expected


def test_an_expanded_tensor_is_shown_in_the_function_that_is_given_it() -> None:
    program = next(p for p in PROGRAMS if p.stem == "stride_bad")
    [found] = [s for s in suspicions(program) if s.finding.code == "RC204"]
    assert found.finding.function == "Model.forward"
    assert found.shown_in == ("Rotary.forward",)
