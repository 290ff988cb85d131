"""When CUDA graphs are warmed up and recorded, and why they are recorded again.

Inductor's graph trees are watched through hooks that only recordings reach: a replay
costs nothing more. Whole steps that `torchproof.graph` records announce themselves.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from torchproof.torch_private.hooks import patched

_STEPS = {"run_eager": "warm-up", "record_function": "recording"}


@dataclass(frozen=True)
class RecordingBegin:
    """A recording that begins.

    `again` if the same graph was warmed up before for other sizes, or if an earlier
    recording did not fit; `reasons` say why it did not.
    """

    how: str  # warm-up, recording, or step: a whole step of `torchproof.graph`
    shapes: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    again: bool = False
    compile_id: str | None = None


Around = Callable[[RecordingBegin], AbstractContextManager[None]]
_around_steps: list[Around] = []


def announced_step(shapes: Sequence[str]) -> AbstractContextManager[None]:
    """The context in which `torchproof.graph` records a step."""
    if not _around_steps:
        return contextlib.nullcontext()
    return _around_steps[-1](RecordingBegin("step", tuple(shapes)))


@contextlib.contextmanager
def step_recordings(around: Around) -> Iterator[None]:
    """Runs each recording of `torchproof.graph` within `around(begin)`."""
    _around_steps.append(around)
    try:
        yield
    finally:
        _around_steps.remove(around)


@contextlib.contextmanager
def tree_recordings(around: Around) -> Iterator[None]:
    """Runs each warm-up and recording of Inductor within `around(begin)`."""
    trees = importlib.import_module("torch._inductor.cudagraph_trees")
    manager = trees.CUDAGraphTreeManager
    with contextlib.ExitStack() as patches:
        for name, how in _STEPS.items():
            step = _within(getattr(manager, name), how, around)
            patches.enter_context(patched(manager, name, step))
        yield


def _within(original: Callable[..., Any], how: str, around: Around) -> Any:
    @functools.wraps(original)
    def step(self: Any, new_inputs: list[Any], function_id: Any) -> Any:
        with around(_begin(self, new_inputs, function_id, how)):
            return original(self, new_inputs, function_id)

    return step


def _begin(
    manager: Any, inputs: Sequence[Any], function_id: Any, how: str
) -> RecordingBegin:
    wrapped = manager.ids_to_funcs[function_id]
    compile_id = manager.id_to_compile_id[function_id]
    static = set(wrapped.static_input_idxs)
    reasons = tuple(_mismatches(manager, inputs, function_id))
    others = [each for each in manager.warmed_up_functions if each != function_id]
    return RecordingBegin(
        how=how,
        shapes=tuple(
            "x".join(map(str, value.shape)) or "scalar"
            for index, value in enumerate(inputs)
            if index not in static and isinstance(value, torch.Tensor)
        ),
        reasons=reasons,
        again=bool(reasons)
        or any(manager.ids_to_funcs[each].model is wrapped.model for each in others),
        compile_id=None if compile_id is None else str(compile_id),
    )


def _mismatches(manager: Any, inputs: Sequence[Any], function_id: Any) -> Iterator[str]:
    """Why the recordings that could follow the current one do not fit this call."""
    node = manager.current_node
    following = manager.roots if node is None else getattr(node, "children", {})
    for recorded in following.get(function_id, ()):
        status, _ = recorded.check_invariants(inputs)
        if status.name != "SUCCESS":
            yield str(status)
