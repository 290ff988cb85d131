"""Whole steps as CUDA graphs: `torchproof.graph(step, example)`.

One replay launches all kernels of a step, forward, backward and optimizer, and costs
the host a few microseconds. In come a step and an example of a call; out goes a
callable that answers as the step does, or runs the step itself and says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torchproof.runtime.cudagraph.bucket_planner import Buckets
    from torchproof.runtime.cudagraph.graphed_step import Graphed
    from torchproof.strategies import Recipe

__all__ = ["graph"]


def graph(
    step: Callable[..., Any],
    example: tuple[Any, ...] | Mapping[str, Any] | None = None,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    train: bool | None = None,
    strategy: str | None = None,
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
    to the step. `strategy` says how it is compiled before it is recorded: eager (the
    default), full, regional or nested; `arguments` are further ones for torch.compile:
    options={...}. `recipe`, a file of `torchproof tune`, says all of this; where it was
    not made for, the step runs as it is.
    `outputs="buffers"` hands out the recording's own memory, which the next replay of
    the same shapes overwrites. `pool`: another graphed step to share memory with; the
    two then take turns. `pad` names the dimensions of arguments that may be padded,
    `unpad` those of outputs, and `buckets` the sizes to pad to.
    """
    from torchproof.runtime.cudagraph.build_graph import build, check

    check(step, example, train=train, strategy=strategy, outputs=outputs, pool=pool)
    asked = {"train": train, "strategy": strategy, "recipe": recipe}
    graphed = build(
        step,
        {**asked, "arguments": arguments},
        {"pad": pad, "unpad": unpad, "sizes": buckets},
        pool=pool,
        buffers=outputs == "buffers",
    )
    if example is not None:
        if isinstance(example, Mapping):
            graphed.prepare(**example)
        else:
            graphed.prepare(*example)
    return graphed
