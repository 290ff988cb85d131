"""AD105: a guard that takes -0.0 for 0.0."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advisories.advisory import (
    Advisory,
    CapturedGraph,
    Trigger,
)
from torchproof.records import Operation

# Operations whose result depends on the sign of a zero among their constants.
_SIGNED = frozenset(
    {
        *("copysign", "atan2", "arctan2", "full", "full_like", "new_full", "fill_"),
        *("div", "divide", "true_divide", "truediv", "div_", "true_divide_"),
    }
)


class SignedZero(Advisory):
    """A call with -0.0 runs the code that was compiled for 0.0, or the reverse.

    ## Why
    The first value of a float argument is a constant of the graph, with a guard. The
    guard compares with `==`, and -0.0 == 0.0. The results of `copysign`, `atan2` and
    divisions depend on the sign.

    ## Bad
        compiled(x, 0.0)
        compiled(x, -0.0)                      # x / 0.0 again

    ## Good
        compiled(x, torch.tensor(0.0))
        compiled(x, torch.tensor(-0.0))

    ## Fix safety
    A tensor of no dimensions gives the same values, and does not recompile.
    """

    code = "AD105"
    problem = "signed_zeros"
    suspects = "stale_state"
    reference = torch_pages.GUARDS
    run_severity = "low"
    message_text = (
        "`{at.expression}` is compiled for {name} = {zero}, and gives a call with"
        " {other} the wrong sign"
    )
    cause_text = (
        "the guard of {torch} on {name} compares with ==, which takes -0.0 for 0.0"
    )

    def triggers(self, graph: CapturedGraph) -> Iterator[Trigger]:
        if not graph.event.zeros:
            return
        name = graph.event.zeros[0]
        for operation in graph.operations:
            if (zero := _zero(operation)) is not None:
                words = {"name": name, "zero": repr(zero), "other": repr(-zero)}
                yield Trigger(operation, words)


def _zero(operation: Operation) -> float | None:
    if operation.name not in _SIGNED:
        return None
    zeros = (n for n in operation.numbers if isinstance(n, float) and n == 0)
    return next(zeros, None)
