"""Private parts of torch that capturing a whole step needs: schemas, limits, frames."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
import warnings
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.torch_private import contract
from torchproof.torch_private.dynamo import stances
from torchproof.torch_private.hooks import FrameRequest, frame_callbacks, skip_once

# Operations that mutate arguments without declaring it in their schemas.
_UNDECLARED = dict.fromkeys(
    ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
    ("running_mean", "running_var"),
)
_TRAINING = 5  # the position of their argument `training`
_MOST_SHAPES = 256  # for which one function may be compiled


def written_arguments(operation: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operation writes to in this call."""
    if operation.overloadpacket.__name__ in _UNDECLARED and not args[_TRAINING]:
        return []
    return [
        args[position] if position < len(args) else kwargs.get(name)
        for position, name in _mutated_arguments(operation)
    ]


@functools.cache
def _mutated_arguments(operation: Any) -> tuple[tuple[int, str], ...]:
    """The positions and names of the arguments that an operation mutates."""
    undeclared = _UNDECLARED.get(operation.overloadpacket.__name__, ())
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(operation._schema.arguments)
        if argument.name in undeclared
        or (argument.alias_info is not None and argument.alias_info.is_write)
    )


Tensors = list[Tensor] | tuple[Tensor, ...]


def current_stream() -> tuple[int, int]:
    """The current device and its current stream, without an object for them."""
    if _RAW_STREAM is None:
        stream = torch.cuda.current_stream()
        return stream.device_index, stream.cuda_stream
    device = torch.cuda.current_device()
    return device, _RAW_STREAM(device)


# Missing in a torch that is built without CUDA.
_RAW_STREAM: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def copy_into(targets: Tensors, sources: Tensors) -> None:
    """Copies each source into its target, in one launch if they are on one device."""
    enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)  # in less time than `no_grad`
    try:
        if len(targets) == 1:
            targets[0].copy_(sources[0], non_blocking=True)
        else:
            torch._foreach_copy_(targets, sources, non_blocking=True)
    finally:
        torch._C._set_grad_enabled(enabled)


def copies_of(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """A copy of each, in few launches."""
    return torch._foreach_mul(tensors, 1)


def without_lazy_bits(tensor: Tensor) -> Tensor:
    """The memory of a tensor as it is, without a pending conjugation or negation."""
    if tensor.is_neg():
        tensor = torch._neg_view(tensor)
    return tensor.conj() if tensor.is_conj() else tensor


def with_lazy_bits_of(tensor: Tensor, other: Tensor) -> Tensor:
    """A view with the pending conjugation and negation of another tensor."""
    if other.is_conj():
        tensor = tensor.conj()
    return torch._neg_view(tensor) if other.is_neg() else tensor


@torch.no_grad()
def zero_all(tensors: list[Tensor]) -> None:
    torch._foreach_zero_(tensors)


@contextlib.contextmanager
def own_workspaces() -> Iterator[None]:
    """Allocates new cuBLAS workspaces inside, and frees them afterwards.

    So a capture has its workspaces in its own pool. Otherwise a recording would use
    memory that torch frees whenever it clears the workspaces.
    """
    clear_workspaces()
    try:
        yield
    finally:
        clear_workspaces()


def clear_workspaces() -> None:
    """Frees the cuBLAS workspaces of all streams."""
    # Only CUDA builds have this function.
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def free_host_memory() -> None:
    """Gives pinned host memory that is not in use back to the system."""
    # Only CUDA builds have this function.
    free = getattr(torch._C, "_host_emptyCache", None)
    if free is not None:
        free()


def end_allocation(device: torch.device, pool: Any) -> None:
    """Stops allocating from the pool of a capture that failed."""
    # Only CUDA builds have this function.
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end is not None:
        with contextlib.suppress(RuntimeError):
            end(device.index, pool)


def end_failed_recording(stream: torch.cuda.Stream) -> None:
    """Resets torch if a CUDA graph tree has failed to record a graph.

    Torch leaves the stream of the recording as the current one, goes on to allocate
    from its pool, and takes random generators to be captured until another capture has
    succeeded. `stream` was the current one before.
    """
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None or contract.missing("trees that failed to record"):
        return
    if torch.cuda.current_stream(stream.device) == stream:
        return  # no recording, or it ended
    torch.cuda.set_stream(stream)
    manager = trees.get_manager(stream.device.index, create_if_none_exists=False)
    with contextlib.suppress(RuntimeError):  # the device may be lost
        if manager is not None:
            end_allocation(stream.device, manager.cuda_graphs_thread_pool)
        capture_nothing(torch.cuda.Stream(stream.device))


def capture_nothing(stream: torch.cuda.Stream) -> None:
    """Captures an empty graph, after which random generators are no longer captured."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")
        with torch.cuda.graph(
            torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"
        ):
            pass


def force_eager() -> contextlib.AbstractContextManager[Any]:
    """Runs compiled functions in eager; there are none before Dynamo is imported."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return stances.force_eager()


def many_shapes() -> contextlib.AbstractContextManager[None]:
    """Allows one compilation for each shape: each shape is recorded once."""
    config = importlib.import_module("torch._dynamo.config")
    return config.patch(
        recompile_limit=_MOST_SHAPES, accumulated_recompile_limit=16 * _MOST_SHAPES
    )


@contextlib.contextmanager
def only_frames_of(
    codes: Collection[CodeType], blocks: Collection[Any]
) -> Iterator[None]:
    """Compiles only the frames of these functions, in this thread.

    `blocks` are modules that are compiled separately; their frames are not affected.
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

    with replaced_call(block, call):
        yield


@contextlib.contextmanager
def replaced_call(module: nn.Module, compiled: Any) -> Iterator[None]:
    """Makes a call of the module run `compiled`, as after `module.compile()`."""
    namespace = module.__dict__
    name = "_compiled_call_impl"
    had_value = name in namespace
    before = namespace.get(name)
    namespace[name] = compiled
    try:
        yield
    finally:
        if had_value:
            namespace[name] = before
        else:
            del namespace[name]
