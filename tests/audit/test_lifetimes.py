"""Tensors that outlive their memory are found with their holders; clean twins are not.

Without a GPU: the programs run as captured, with the lifetimes that graph trees would
give their outputs. `tests/gpu` runs the same programs against the real trees.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import PROGRAMS, audited, describe, expected, fits

QUICK = {"CG301/bad", "CG301/good"}
QUICK |= {"CG302/bad", "CG302/good", "CG303/bad", "CG304/bad"}


def name(program: Path) -> str:
    return f"{program.parent.name}/{program.stem}"


MARKED = [
    pytest.param(
        path, id=name(path), marks=() if name(path) in QUICK else pytest.mark.slow
    )
    for path in PROGRAMS
]


@pytest.mark.parametrize("program", MARKED)
def test_program_gets_its_diagnosis(program: Path) -> None:
    findings = audited(program)
    wanted = expected(program)
    for each in wanted:
        assert any(fits(f, each, program) for f in findings), (
            f"expected {each}\ngot:\n{describe(findings)}"
        )
    others = [f for f in findings if not any(fits(f, e, program) for e in wanted)]
    assert not others, f"false alarm:\n{describe(others)}"
