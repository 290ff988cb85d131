"""Step marks and forwards with a pending backward, as CUDA graph trees count them.

Nothing here loads Inductor: without it there are neither marks nor trees.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

from torchproof.torch_private import contract

_TREES = "torch._inductor.cudagraph_trees"
_MUTATION_GUARD = "torch._dynamo.mutation_guard"
_VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
_KEEPS_SAVED_TENSORS = _VERSION >= (2, 15)


def _loaded(name: str, feature: str = "step") -> Any:
    """A module of torch; None if it is not loaded or lacks what the feature needs."""
    module = sys.modules.get(name)
    return None if module is None or contract.missing(feature) else module


def marks() -> int:
    """How often a step was marked in this process, by any code."""
    trees = _loaded(_TREES)
    # The counter starts at 0 and decreases, unlike torch's count of compiled calls.
    return 0 if trees is None else -trees.MarkStepBox.mark_step_counter


def compiled_calls() -> int:
    """The number of outermost calls of compiled functions in this process."""
    guard = _loaded(_MUTATION_GUARD, "step counts")
    return 0 if guard is None else int(guard.GenerationTracker.generation)


def pending_forward() -> Any:
    """The last graph, if it is a forward whose backward is pending; else None.

    A forward whose outputs and saved tensors are all freed is not pending.
    """
    manager = _manager()
    if manager is None or not manager.running_forwards_with_pending_backwards:
        return None
    node = manager.current_node
    if node is None:
        return None
    release_unused_outputs()
    # Before 2.15 torch treats tensors that only autograd has saved as dead.
    saved = any(
        tensor is not None and tensor._use_count() > 1
        for each in node._path_from_root
        for tensor in getattr(each, "cached_tensor_outputs", ())
    )
    return node if saved or not node.all_outputs_are_dead() else None


def release_unused_outputs() -> None:
    """Detaches outputs that only a recorded graph holds from their autograd graph.

    A recorded graph returns the same tensors at each replay. Its reference to them
    would keep the autograd graph of the last replay alive.
    """
    manager = _manager()
    for node in [] if manager is None else _recorded(manager):
        outputs = node.cached_tensor_outputs
        for i in range(len(outputs)):
            # Two references: the list's, and the argument of getrefcount().
            unused = sys.getrefcount(outputs[i]) == 2
            if (
                unused
                and outputs[i]._use_count() == 1
                and outputs[i].grad_fn is not None
            ):
                outputs[i].detach_()


def may_overwrite_saved_tensors() -> bool:
    """Whether CUDA graphs have run that may overwrite tensors saved by autograd.

    Before 2.15 torch treats tensors that only autograd has saved as free memory.
    """
    return not _KEEPS_SAVED_TENSORS and _manager() is not None


def no_saved_tensor_hooks() -> bool:
    """Whether no saved-tensor hooks are active: reading a tensor would unpack it."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def place_of(node: Any) -> tuple[str, int] | None:
    """A line of the function that a graph was compiled from; None if unknown."""
    for trace in filter(None, getattr(node, "stack_traces", None) or ()):
        if lines := re.findall(r'File "(.+?)", line (\d+)', trace):
            file, line = lines[-1]
            return file, int(line)
    return None


def _recorded(manager: Any) -> Iterator[Any]:
    """All recorded graphs."""
    queue = [node for nodes in manager.roots.values() for node in nodes]
    while queue:
        node = queue.pop()
        yield node
        queue += [child for nodes in node.children.values() for child in nodes]


def _manager() -> Any:
    trees = _loaded(_TREES)
    if trees is None or not torch.cuda.is_initialized():
        return None
    device = torch.cuda.current_device()
    return trees.get_manager(device, create_if_none_exists=False)
