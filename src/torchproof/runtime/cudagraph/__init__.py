"""Records whole steps as CUDA graphs: `torchproof.graph(step, example)`.

Takes a step and an example call, returns a callable with the same results. One replay
launches all kernels of the step, forward, backward and optimizer, and costs the host a
few microseconds. A step that cannot be recorded runs without a graph, and `status()`
says why. Start with `graphed_step.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from torchproof.records import Keywords, collector_paused

if TYPE_CHECKING:
    from torchproof.runtime.cudagraph.graphed_step import Graphed
    from torchproof.strategies import Recipe

__all__ = ["graph"]


def graph(
    step: Callable[..., Any],
    example: tuple[Any, ...] | Keywords | None = None,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    train: bool | None = None,
    strategy: str | None = None,
    wait: bool = True,
    outputs: Literal["copies", "buffers"] = "copies",
    checks: Literal["default", "arguments"] = "default",
    audit: int | None = None,
    depends: Callable[[], Any] | None = None,
    pool: Graphed | None = None,
    pad: Mapping[str | int, Any] | None = None,
    buckets: Iterable[int | tuple[int, ...]] | None = None,
    **arguments: Any,
) -> Graphed:
    """Returns the step, recorded as one CUDA graph for each set of input shapes.

    `step` is a module or a function: forward alone, or forward, backward and optimizer
    step. `example` is one call, a tuple of arguments or a dict of keywords, to record
    at once; without it, the first call is recorded. A module runs without gradients.
    With `train`, the step includes the loss (`.loss`, else the mean of the outputs) and
    the backward. `strategy` is how the step is compiled before it is recorded: eager
    (the default), full, regional or nested. `arguments` go to torch.compile, such as
    options={...}. `recipe`, a file from `torchproof tune`, replaces these settings; on
    a machine or model that it does not fit, the step runs without a graph. With
    `wait=False`, calls are answered during compilation: the step is recorded
    uncompiled, and compiled code replaces it between two calls, once it is there and
    faster. The strategy "best", the default then, tries regional first and full
    afterwards. With `outputs="buffers"`, the caller gets the recording's own memory,
    which the next replay of the same shapes overwrites. With `checks="arguments"`, you
    promise that nothing but the arguments changes. That is checked when other shapes
    are recorded, and with `audit=N` at each N-th call: `UserError` says what changed.
    `depends` returns what else the step depends on, such as a number that a C extension
    holds: each value of it has its recordings. `pool` is another graphed step
    to share memory with; the two cannot run at the same time. `pad` names the
    dimensions of arguments that may be padded, and `buckets` lists the sizes to pad to.
    """
    with collector_paused():
        from torchproof.runtime.cudagraph.build_graph import build

    graphed = build(
        step,
        arguments,
        example=example,
        recipe=recipe,
        train=train,
        strategy=strategy,
        wait=wait,
        outputs=outputs,
        checks=checks,
        audit=audit,
        depends=depends,
        pool=pool,
        pad=pad,
        buckets=buckets,
    )
    if isinstance(example, Mapping):
        graphed.prepare(**example)
    elif example is not None:
        graphed.prepare(*example)
    return graphed
