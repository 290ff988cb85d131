"""What a recording of a whole step has to ask torch: schemas, limits, frames."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.torch_private.hooks import FrameRequest, frame_callbacks, skip_once

PROBES: dict[str, tuple[str, ...]] = {
    "how many times a function may be compiled": (
        "torch._dynamo.config:recompile_limit",
        "torch._dynamo.config:accumulated_recompile_limit",
        "torch._dynamo.config:patch",
    ),
    "copies in one launch": ("torch:_foreach_copy_", "torch:_foreach_zero_"),
    "the compiled self of a module": ("torch.nn:Module._compiled_call_impl",),
}
# Operations that write into arguments without saying so.
_UNDECLARED = dict.fromkeys(
    ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
    ("running_mean", "running_var"),
)
_SHAPES = 256  # that one function may be compiled for


@functools.cache
def written_arguments(operation: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of the arguments an operation writes into."""
    undeclared = _UNDECLARED.get(operation.overloadpacket.__name__, ())
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(operation._schema.arguments)
        if argument.name in undeclared
        or (argument.alias_info is not None and argument.alias_info.is_write)
    )


@torch.no_grad()
def copy_into(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Every source into its target, in one launch where they lie on one device."""
    torch._foreach_copy_(targets, sources, non_blocking=True)


@torch.no_grad()
def zero_all(tensors: list[Tensor]) -> None:
    torch._foreach_zero_(tensors)


@contextlib.contextmanager
def own_workspaces() -> Iterator[None]:
    """What cuBLAS needs is allocated anew meanwhile, and given up afterwards.

    So in a capture it lies in the capture's pool. Else a recording would go on using
    memory that torch frees whenever it clears these workspaces.
    """
    clear = getattr(
        torch._C, "_cuda_clearCublasWorkspaces", None
    )  # in CUDA builds only
    if clear is None:
        yield
        return
    clear()
    try:
        yield
    finally:
        clear()


def end_allocation(device: torch.device, pool: Any) -> None:
    """What is allocated from here on does not belong to a capture that failed."""
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)  # in CUDA builds only
    if end is not None:
        with contextlib.suppress(RuntimeError):
            end(device.index, pool)


def many_shapes() -> contextlib.AbstractContextManager[None]:
    """Every shape may have code of its own: each is recorded once."""
    config = importlib.import_module("torch._dynamo.config")
    return config.patch(
        recompile_limit=_SHAPES, accumulated_recompile_limit=16 * _SHAPES
    )


@contextlib.contextmanager
def only_frames_of(
    codes: Collection[CodeType], blocks: Collection[Any]
) -> Iterator[None]:
    """In this thread, of all frames only those of these functions are compiled.

    `blocks` are modules with compiled code of their own, whose frames are not touched.
    """
    thread = threading.get_ident()
    inside = [0]

    def convert(go_on: Any, request: FrameRequest) -> Any:
        elsewhere = threading.get_ident() != thread
        if elsewhere or inside[0] or request.frame.f_code in codes:
            return go_on()
        return skip_once()

    with frame_callbacks(convert), contextlib.ExitStack() as stack:
        for block in blocks:
            stack.enter_context(_counted(block, inside))
        yield


@contextlib.contextmanager
def _counted(block: nn.Module, inside: list[int]) -> Iterator[None]:
    compiled = block._compiled_call_impl
    assert compiled is not None

    def call(*args: Any, **kwargs: Any) -> Any:
        inside[0] += 1
        try:
            return compiled(*args, **kwargs)
        finally:
            inside[0] -= 1

    with compiled_self(block, call):
        yield


@contextlib.contextmanager
def compiled_self(module: nn.Module, compiled: Any) -> Iterator[None]:
    """The module runs this in place of its own code, as after `module.compile()`."""
    namespace, name = module.__dict__, "_compiled_call_impl"
    had, before = name in namespace, namespace.get(name)
    namespace[name] = compiled
    try:
        yield
    finally:
        if had:
            namespace[name] = before
        else:
            del namespace[name]
