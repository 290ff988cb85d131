"""What a worker does as one of several ranks: agree with them, and run wrapped code.

Timed loops have to make the same number of passes on all ranks, or the last rank waits
in a collective. So ranks exchange a number before each decision, in a group of their
own and outside of what is timed. A worker without other ranks is `Alone`, and agrees at
once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchproof.strategies import NotApplicable, Strategy
from torchproof.targets import Job, Loaded, calls, parallel

if TYPE_CHECKING:
    from torchproof.strategies import Applied

# Takes a target and its calls, and applies a strategy as planned.
Apply = Callable[[Any, Sequence[Any]], "Applied"]

# Applied before the model is wrapped; others compile the wrapped model.
_INSIDE = ("regional", "nested", "core")
NO_FLOAT64 = (
    "no float64 reference on several ranks: outputs are compared with eager's own, on"
    " the same number of ranks"
)


class Alone:
    """A worker that is the only one."""

    several = False
    rank = 0

    def meet(self) -> None:
        """Waits until all ranks are here."""

    def largest(self, value: float) -> float:
        """The largest value of any rank."""
        return value

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return flag

    def own_file(self, path: Path) -> Path:
        """The file of this rank, of those with this path."""
        return path

    def of_each(self, value: Any) -> tuple[Any, ...]:
        """What a reply has of each rank, if there are several."""
        return ()

    def work(self, loaded: Loaded, job: Job) -> tuple[Any, ...] | None:
        """The work of this rank in a pass, as amount and unit."""
        return calls.amount(loaded)

    def eager(self, loaded: Loaded, job: Job) -> Callable[..., Any]:
        """What a call of the target runs, without a strategy."""
        return loaded.fn

    def applied(
        self, strategy: Strategy, loaded: Loaded, job: Job, apply: Apply
    ) -> Applied:
        """The target with the strategy applied to it."""
        return apply(loaded.fn, loaded.calls)


class Peers(Alone):
    """One of several ranks, in the process group of all; the job must be resolved."""

    several = True

    def __init__(self, job: Job) -> None:
        from torch import distributed

        parallel.join(job.device)
        self._distributed: Any = distributed
        self._group = distributed.new_group(backend="gloo")
        self.rank = distributed.get_rank()

    def meet(self) -> None:
        self.largest(0.0)

    def any(self, flag: bool) -> bool:
        return self.largest(float(flag)) > 0

    def largest(self, value: float) -> float:
        import torch

        largest = torch.tensor(value, dtype=torch.float64, device="cpu")
        operation = self._distributed.ReduceOp.MAX
        self._distributed.all_reduce(largest, operation, group=self._group)
        return largest.item()

    def own_file(self, path: Path) -> Path:
        return path.with_name(f"rank{self.rank}-{path.name}")

    def of_each(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def work(self, loaded: Loaded, job: Job) -> tuple[Any, ...] | None:
        """Its share of the work, if several ranks compute one batch together."""
        if (whole := calls.amount(loaded)) is None:
            return None
        amount, unit = whole
        return amount / parallel.ranks_per_batch(job.wrap or loaded.wrap), unit

    def eager(self, loaded: Loaded, job: Job) -> Callable[..., Any]:
        """The target as it is, wrapped."""
        parallel.assert_placed(loaded.fn, loaded.calls)
        plan = loaded.tensor_parallel_plan
        return parallel.wrapped(loaded.fn, job.wrap or loaded.wrap, _as_is, plan=plan)

    def applied(
        self, strategy: Strategy, loaded: Loaded, job: Job, apply: Apply
    ) -> Applied:
        """The target, wrapped and compiled.

        What compiles the whole model does so after it was wrapped, as torch recommends;
        blocks and methods are compiled in place before.
        """
        wrap = job.wrap or loaded.wrap
        _assert_applicable(strategy, wrap)
        found: list[Applied] = []
        plan = loaded.tensor_parallel_plan

        def compiled(module: Any) -> Any:
            found.append(apply(module, loaded.calls))
            return found[0].fn

        if strategy.form in _INSIDE:
            inner = compiled(loaded.fn)
            fn = parallel.wrapped(inner, wrap, _as_is, plan=plan)
        else:
            fn = parallel.wrapped(loaded.fn, wrap, compiled, plan=plan)
        source = found[0].source
        if wrap is not None and strategy.compiles:
            when = "before" if strategy.form in _INSIDE else "after"
            source = f"# {when} the model is wrapped with {wrap}\n{source}"
        return dataclasses.replace(found[0], fn=fn, source=source)


# -- the target on a rank --------------------------------------------------------------


def _as_is(whole: Any) -> Any:
    return whole


def _assert_applicable(strategy: Strategy, wrap: str | None) -> None:
    """Raises `NotApplicable` for a strategy that several ranks cannot run."""
    if strategy.graph:
        raise NotApplicable(
            "a whole step with its collectives is not recorded in a CUDA graph: on"
            " several ranks, use full:reduce-overhead"
        )
    if strategy.form == "nested" and wrap is not None:
        raise NotApplicable(
            "nested compiles blocks inside the whole model, which leaves no place for"
            f" the hooks of {wrap}: use regional or full"
        )
