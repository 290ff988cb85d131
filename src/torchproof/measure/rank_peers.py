"""What a worker does as one of several ranks: agree with them, and run wrapped code.

Timed loops have to make the same number of passes on all ranks, or the last rank waits
in a collective. So ranks exchange a number before each decision, in a group of their
own and outside of what is timed. A worker without
other ranks agrees at once.
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


class Peers:
    """The process groups of all ranks, if there are several; else agrees at once."""

    def __init__(self, job: Job | None = None) -> None:
        """Joins the other ranks if there is a job, which must be resolved."""
        self.several = job is not None
        if job is None:
            return
        from torch import distributed

        parallel.join(job.device)
        self._distributed: Any = distributed
        self._group = distributed.new_group(backend="gloo")
        self._rank = distributed.get_rank()

    def meet(self) -> None:
        """Waits until all ranks are here."""
        self.largest(0.0)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return self.largest(float(flag)) > 0

    def largest(self, value: float) -> float:
        """The largest value of any rank."""
        if not self.several:
            return value
        import torch

        largest = torch.tensor(value, dtype=torch.float64, device="cpu")
        operation = self._distributed.ReduceOp.MAX
        self._distributed.all_reduce(largest, operation, group=self._group)
        return largest.item()

    def own_file(self, path: Path) -> Path:
        """The file of this rank, of those with this path."""
        return path.with_name(f"rank{self._rank}-{path.name}") if self.several else path

    def of_each(self, value: Any) -> tuple[Any, ...]:
        """What a reply has of each rank, if there are several."""
        return (value,) if self.several else ()

    def work(self, loaded: Loaded, job: Job) -> tuple[Any, ...] | None:
        """The work of a pass, as amount and unit.

        It is this rank's share, if several ranks compute one batch together.
        """
        whole = calls.amount(loaded)
        if whole is None or not self.several:
            return whole
        amount, unit = whole
        return amount / parallel.ranks_per_batch(job.wrap or loaded.wrap), unit

    def eager(self, loaded: Loaded, job: Job) -> Callable[..., Any]:
        """The target as it is, wrapped on several ranks."""
        if not self.several:
            return loaded.fn
        parallel.assert_placed(loaded.fn, loaded.calls)
        plan = loaded.tensor_parallel_plan
        return parallel.wrapped(loaded.fn, job.wrap or loaded.wrap, _as_is, plan=plan)

    def applied(
        self, strategy: Strategy, loaded: Loaded, job: Job, apply: Apply
    ) -> Applied:
        """The target with the strategy applied to it, wrapped on several ranks.

        What compiles the whole model does so after it was wrapped, as torch recommends;
        blocks and methods are compiled in place before.
        """
        if not self.several:
            return apply(loaded.fn, loaded.calls)
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
