"""Whole steps as CUDA graphs: `torchproof.graph(step, example)`.

One replay launches all kernels of a step, forward, backward and optimizer, and costs
the host a few microseconds. In come a step and an example of a call; out goes a
callable that answers as the step does, or runs the step itself and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from torchproof.records import UserError

if TYPE_CHECKING:
    from torchproof.replay.buckets import Buckets
    from torchproof.replay.graphed import Graphed

__all__ = ["graph"]


def graph(
    step: Callable[..., Any],
    example: tuple[Any, ...] | Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    strategy: str = "eager",
    outputs: Literal["copies", "buffers"] = "copies",
    pool: Graphed | None = None,
    pad: Mapping[str | int, Any] | None = None,
    unpad: Mapping[str | int, Any] | None = None,
    buckets: Buckets | Iterable[int | tuple[int, ...]] | None = None,
    **arguments: Any,
) -> Graphed:
    """The step, replayed from a CUDA graph for each shape it is called with.

    `step` is a module or a function: forward alone, or forward, backward and optimizer
    step. `example` is one call (a tuple of arguments or a dict of keywords) that is
    recorded at once; without it the first call is. A module is run without gradients;
    with `train`, its loss (`.loss`, else the mean of its outputs) and backward belong
    to the step. `strategy` says how it is compiled before it is recorded: eager, full,
    regional or nested; `arguments` are further ones for torch.compile: options={...}.
    `outputs="buffers"` hands out the recording's own memory, which the next replay of
    the same shapes overwrites. `pool`: another graphed step to share memory with; the
    two then take turns. `pad` names the dimensions of arguments that may be padded,
    `unpad` those of outputs, and `buckets` the sizes to pad to.
    """
    if outputs not in ("copies", "buffers"):
        raise UserError(f"outputs={outputs!r}: give 'copies' or 'buffers'")
    if not callable(step):
        raise UserError(f"graph: {type(step).__name__} is not callable")
    from torchproof.replay.making import chosen, graphed
    from torchproof.replay.padder import Padder

    made = graphed(
        step,
        train=train,
        strategy=chosen(strategy, arguments),
        pool=pool,
        buffers=outputs == "buffers",
        padder=Padder.parse(step, pad, unpad, buckets),
    )
    if example is not None:
        if isinstance(example, Mapping):
            made.prepare(**example)
        else:
            made.prepare(*example)
    return made
