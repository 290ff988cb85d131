"""Finds forwards whose backward is pending, by their autograd graph, on any device."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchproof.runtime.steps.step_counts import name_of
from torchproof.torch_private import step_marks, trees

Place = tuple[str, int]
_MOST_NODES = 32  # autograd nodes that are searched


class Backward:
    """A hook on the autograd nodes of a forward; only the nodes keep it alive."""

    def __init__(self, saved: list[Tensor]) -> None:
        self.ran = False
        self.saved = saved  # kept alive until the backward begins

    def __call__(self, *gradients: Any) -> None:
        self.ran = True
        self.saved = []


@dataclass(frozen=True)
class Forward:
    """A call whose outputs require a gradient."""

    fn: Callable[..., Any]
    place: Place
    backward: weakref.ref[Backward]

    @property
    def pending(self) -> bool:
        backward = self.backward()
        return backward is not None and not backward.ran

    def __str__(self) -> str:
        place = text(self.place)
        return f"the backward of {name_of(self.fn)}, called at {place}, is pending"


def pending_forward(
    fn: Callable[..., Any], place: Place, output: Any
) -> Forward | None:
    """The forward that returned this output, if its backward must still run."""
    nodes = {t.grad_fn for t in trees.tensors(output) if t.grad_fn is not None}
    saved = saved_tensors(nodes) if nodes and step_marks.no_saved_tensor_hooks() else []
    if not nodes or saved is None:  # no gradient is required, or the backward has run
        return None
    # A tensor with a history would reference the node that references it.
    saved = [t if t.grad_fn is None else t.detach() for t in saved]
    backward = Backward(saved if step_marks.may_overwrite_saved_tensors() else [])
    for node in nodes:
        node.register_prehook(backward)
    return Forward(fn, place, weakref.ref(backward))


def saved_tensors(nodes: Iterable[Any]) -> list[Tensor] | None:
    """The tensors that compiled forwards near some autograd nodes saved for backward.

    None if they have been freed, because the backward has run.
    """
    saved: list[Tensor] = []
    waiting = list(nodes)
    visited = set[Any]()
    while waiting and len(visited) < _MOST_NODES:
        node = waiting.pop(0)
        if node is None or node in visited:
            continue
        visited.add(node)
        if not hasattr(type(node), "saved_tensors"):  # a built-in operator of torch
            waiting += [before for before, _ in node.next_functions]
            continue
        try:
            saved += [t for t in node.saved_tensors if t is not None]
        except RuntimeError:
            return None
    return saved


# -- places ----------------------------------------------------------------------------


def text(place: Place) -> str:
    return f"{place[0]}:{place[1]}"


def calling_place() -> Place:
    """The innermost line of the stack outside this package and torch."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch.", "torchproof.runtime.steps")):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
