"""Marks of steps, and forwards that await their backward, as CUDA graph trees see them.

Nothing here loads Inductor: where it is not loaded, there are neither marks nor trees.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import torch

_TREES = "torch._inductor.cudagraph_trees"

PROBES: dict[str, tuple[str, ...]] = {
    "marks of steps": (f"{_TREES}:MarkStepBox.mark_step_counter",),
    "forwards that await their backward": (
        f"{_TREES}:get_manager",
        f"{_TREES}:CUDAGraphTreeManager.set_to_running_backward",
        f"{_TREES}:CUDAGraphTreeManager.current_node",
        f"{_TREES}:CUDAGraphNode.all_outputs_are_dead",
        f"{_TREES}:CUDAWarmupNode.all_outputs_are_dead",
    ),
}


def marks() -> int:
    """How often a step was marked in this process, by whomever."""
    trees = sys.modules.get(_TREES)
    # Counted downwards, and apart from torch's own count of compiled calls.
    return 0 if trees is None else -trees.MarkStepBox.mark_step_counter


def last_node() -> Any:
    """The graph that ran last on this thread's current device; None without graphs."""
    manager = _manager()
    return None if manager is None else manager.current_node


def awaiting_node() -> Any:
    """The last graph, where it is a forward whose backward is still to come.

    A forward whose outputs and saved tensors are all gone awaits nothing.
    """
    manager = _manager()
    if manager is None or not manager.running_forwards_with_pending_backwards:
        return None
    node = manager.current_node
    return None if node is None or node.all_outputs_are_dead() else node


def place_of(node: Any) -> tuple[str, int] | None:
    """A line of the function a graph was made from, if torch has kept one."""
    for trace in filter(None, getattr(node, "stack_traces", None) or ()):
        if lines := re.findall(r'File "(.+?)", line (\d+)', trace):
            file, line = lines[-1]
            return file, int(line)
    return None


def _manager() -> Any:
    trees = sys.modules.get(_TREES)
    if trees is None or not torch.cuda.is_initialized():
        return None
    device = torch.cuda.current_device()
    return trees.get_manager(device, create_if_none_exists=False)
