"""What an arm's answers are judged by: eager as it is, in float64, and nudged.

Comes in: how to make a target anew and how to take its answers. Goes out: a
`Reference`, whose `judge` gives the verdict on an arm's answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from torchproof.measure.numerics.float64_mode import (
    Draw,
    NoDouble,
    Recording,
    double_precision,
    wider,
)
from torchproof.measure.numerics.judgement import Answers, Numerics, judge
from torchproof.measure.numerics.swap_tensors import holding
from torchproof.records import one_line

T = TypeVar("T")
# Eager runs on nudged inputs, taken only if an answer is in doubt.
NUDGES = 4


@dataclass(frozen=True)
class Reference:
    """`exact` is None where float64 could not be computed, `why` says why.

    `draws`: the target takes random numbers from torch.
    """

    eager: Answers
    exact: Answers | None
    why: str
    draws: bool
    nudged: Callable[[], Sequence[Answers]] = tuple

    def judge(self, answers: Answers) -> Numerics:
        return judge(answers, self.eager, self.exact, nudged=self.nudged)


def reference(make: Callable[[], T], run: Callable[[T], Answers]) -> Reference:
    """Eager's answers and what they are worth.

    `make` gives the target anew, whatever holds its function and its calls; `run` takes
    the answers of one pass over it, seeded. Both run several times.
    """
    recording, made = Recording(), make()
    with torch.compiler.set_stance("force_eager"), recording:
        eager = run(made)
    exact, why = _exact(make, run, recording.draws)
    nudged: list[Answers] = []

    def nudge() -> Sequence[Answers]:
        if not nudged:
            nudged.extend(_nudged(make(), run, seed) for seed in range(NUDGES))
        return nudged

    return Reference(eager, exact, why, bool(recording.draws), nudge)


def _exact(
    make: Callable[[], T], run: Callable[[T], Answers], draws: Sequence[Draw]
) -> tuple[Answers | None, str]:
    made = make()
    try:
        with holding(made, wider), double_precision(draws):
            return run(made), ""
    except NoDouble as error:
        return None, f"no float64 reference: {error}"
    except Exception as error:  # whatever the target's code does with float64
        told = one_line(f"{type(error).__name__}: {error}", 200)
        return None, f"no float64 reference: {told}"


def _nudged(made: T, run: Callable[[T], Answers], seed: int) -> Answers:
    """Eager's answers with every number it starts from about one rounding away."""

    def nudge(values: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator(values.device).manual_seed(seed)
        parts = torch.view_as_real(values) if values.is_complex() else values
        by = torch.empty(parts.shape, device=parts.device, dtype=torch.float64)
        by.uniform_(-1, 1, generator=generator)
        near = (parts * (1 + by * torch.finfo(parts.dtype).eps)).to(parts.dtype)
        # Whole numbers are counts, masks and indices: exact in every arm.
        near = torch.where(parts == parts.round(), parts, near)
        return torch.view_as_complex(near) if values.is_complex() else near

    with torch.compiler.set_stance("force_eager"), holding(made, nudge):
        return run(made)
