"""What reading leaves out, and where a run shows what is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from rule_programs import FOLDER

from torchproof.checking.suspicions import Suspicion, read


def suspicions(program: Path) -> list[Suspicion]:
    return list(read([program]).suspicions)


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
    found = suspicions(FOLDER / "RC204.py")
    [found] = [s for s in found if s.finding.code == "RC204"]
    assert found.finding.function == "Model.forward"
    assert found.shown_in == ("Rotary.forward",)
