"""Forwards that await their backward: known by their autograd graph, on any device."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchproof.runtime.steps.output_tensors import tensors
from torchproof.runtime.steps.step_counts import name_of
from torchproof.torch_private import step_marks as trees

Place = tuple[str, int]
_NEAR = 32  # autograd nodes that are looked at


class Backward:
    """A hook on the autograd nodes of a forward; gone when all of them are gone."""

    def __init__(self, saved: list[Tensor]) -> None:
        self.ran = False
        self.saved = saved  # held until the backward begins

    def __call__(self, *gradients: Any) -> None:
        self.ran = True
        self.saved = []


@dataclass(frozen=True)
class Forward:
    """A call whose outputs need a gradient."""

    fn: Callable[..., Any]
    place: Place
    backward: weakref.ref[Backward]

    @property
    def pending(self) -> bool:
        backward = self.backward()
        return backward is not None and not backward.ran

    def __str__(self) -> str:
        called = f"called at {text(self.place)}"
        return f"{name_of(self.fn)}, {called}, awaits its backward"


def awaited(fn: Callable[..., Any], place: Place, output: Any) -> Forward | None:
    """The forward that gave this output, if a backward has to follow it."""
    nodes = {t.grad_fn for t in tensors(output) if t.grad_fn is not None}
    held = saved(nodes) if nodes and trees.no_saved_tensor_hooks() else []
    if not nodes or held is None:  # none needs a gradient, or `fn` ran the backward
        return None
    # One with a history would hold the node that holds it.
    held = [t if t.grad_fn is None else t.detach() for t in held]
    backward = Backward(held if trees.may_overwrite_saved_tensors() else [])
    for node in nodes:
        node.register_prehook(backward)
    return Forward(fn, place, weakref.ref(backward))


def saved(nodes: Iterable[Any]) -> list[Tensor] | None:
    """What compiled forwards close to some autograd nodes have saved.

    None where it is freed: the backward has run.
    """
    found: list[Tensor] = []
    todo, seen = list(nodes), set[Any]()
    while todo and len(seen) < _NEAR:
        node = todo.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        if not hasattr(type(node), "saved_tensors"):  # an operator of torch's own
            todo += [before for before, _ in node.next_functions]
            continue
        try:
            found += [t for t in node.saved_tensors if t is not None]
        except RuntimeError:
            return None
    return found


# -- places ----------------------------------------------------------------------------


def text(place: Place) -> str:
    return f"{place[0]}:{place[1]}"


def calling_place() -> Place:
    """The line outside of this room, and of torch, that led here."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch.", "torchproof.runtime.steps")):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
