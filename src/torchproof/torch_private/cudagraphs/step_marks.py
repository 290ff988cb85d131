"""Marks of steps, and forwards that await their backward, as CUDA graph trees see them.

Nothing here loads Inductor: where it is not loaded, there are neither marks nor trees.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

_TREES = "torch._inductor.cudagraph_trees"
_CALLS = "torch._dynamo.mutation_guard"
_VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
_SEES_WHAT_IS_SAVED = _VERSION >= (2, 15)

PROBES: dict[str, tuple[str, ...]] = {
    "marks of steps": (f"{_TREES}:MarkStepBox.mark_step_counter",),
    "number of compiled calls": (f"{_CALLS}:GenerationTracker.generation",),
    "forwards that await their backward": (
        f"{_TREES}:get_manager",
        f"{_TREES}:CUDAGraphTreeManager.set_to_running_backward",
        f"{_TREES}:CUDAGraphTreeManager.current_node",
        f"{_TREES}:CUDAGraphNode.all_outputs_are_dead",
        f"{_TREES}:CUDAWarmupNode.all_outputs_are_dead",
        f"{_TREES}:CUDAGraphNode._path_from_root",
        f"{_TREES}:CUDAGraphNode._initialize_cached_tensors",
        "torch:Tensor._use_count",
        "torch._C._autograd:_top_saved_tensors_default_hooks",
    ),
}


def marks() -> int:
    """How often a step was marked in this process, by whomever."""
    trees = sys.modules.get(_TREES)
    # Counted downwards, and apart from torch's own count of compiled calls.
    return 0 if trees is None else -trees.MarkStepBox.mark_step_counter


def compiled_calls() -> int:
    """How many outermost calls of compiled functions there were in this process."""
    guard = sys.modules.get(_CALLS)
    return 0 if guard is None else int(guard.GenerationTracker.generation)


def pending_forward() -> Any:
    """The last graph, where it is a forward whose backward is still to come.

    A forward whose outputs and saved tensors are all gone awaits nothing.
    """
    manager = _manager()
    if manager is None or not manager.running_forwards_with_pending_backwards:
        return None
    node = manager.current_node
    if node is None:
        return None
    release_unused_outputs()
    # Before 2.15 torch takes what only autograd has saved for dead.
    saved = any(
        tensor is not None and tensor._use_count() > 1
        for each in node._path_from_root
        for tensor in getattr(each, "cached_tensor_outputs", ())
    )
    return node if saved or not node.all_outputs_are_dead() else None


def release_unused_outputs() -> None:
    """Autograd graphs that live only because a recorded graph holds its last outputs.

    It hands out the same tensors at each replay, which take their place in autograd
    with them. One that nobody else holds leaves it here.
    """
    manager = _manager()
    for node in [] if manager is None else _recorded(manager):
        outputs = node.cached_tensor_outputs
        for i in range(len(outputs)):
            # Two references: the list's, and that of the question.
            alone = sys.getrefcount(outputs[i]) == 2
            if (
                alone
                and outputs[i]._use_count() == 1
                and outputs[i].grad_fn is not None
            ):
                outputs[i].detach_()


def may_overwrite_saved_tensors() -> bool:
    """Whether graphs have run that take what only autograd has saved for free memory.

    Before 2.15 torch may record the next graph over it.
    """
    return not _SEES_WHAT_IS_SAVED and _manager() is not None


def no_saved_tensor_hooks() -> bool:
    """Whether no hooks pack what is saved: to ask for that would unpack it."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def place_of(node: Any) -> tuple[str, int] | None:
    """A line of the function a graph was made from, if torch has kept one."""
    for trace in filter(None, getattr(node, "stack_traces", None) or ()):
        if lines := re.findall(r'File "(.+?)", line (\d+)', trace):
            file, line = lines[-1]
            return file, int(line)
    return None


def _recorded(manager: Any) -> Iterator[Any]:
    """Every graph that was recorded."""
    todo = [node for nodes in manager.roots.values() for node in nodes]
    while todo:
        node = todo.pop()
        yield node
        todo += [child for nodes in node.children.values() for child in nodes]


def _manager() -> Any:
    trees = sys.modules.get(_TREES)
    if trees is None or not torch.cuda.is_initialized():
        return None
    device = torch.cuda.current_device()
    return trees.get_manager(device, create_if_none_exists=False)
