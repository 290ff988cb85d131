"""Records what statements compute while a target runs in eager mode.

A probe is an edit of the source: a call of a function here.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchproof import torch_private
from torchproof.fixing.behaviour import random_digest
from torchproof.fixing.observed_calls import ObservedCall
from torchproof.records import Namespace
from torchproof.runtime import is_data

observed: list[ObservedCall] = []


def note(variables: Namespace, number: int) -> None:
    """Records which variables are data at a place, which has a number."""
    data = tuple(name for name, value in variables.items() if is_data(value))
    observed.append(ObservedCall(number, data))


def probed_data(function: types.FunctionType) -> Callable[..., Any]:
    """A function of Python objects, with a record of why it has to run in its place."""

    def call(*arguments: Any) -> Any:
        read = [arguments, _globals(function)]
        before, random = _plain_values(read), random_digest()
        result = function(*arguments)
        again = function(*arguments)
        problem = None
        if torch_private.trees.tensors(arguments, objects=True):
            problem = "they read tensors"
        elif _plain_values(read) != before:
            problem = "they change an object that they did not make"
        elif random_digest() != random:
            problem = "they draw random numbers"
        elif again != result:
            problem = "their results are others each time"
        elif _containers(result) & (_containers(again) | _containers(read)):
            problem = "their result is an object that something else has"
        observed.append(ObservedCall(problem=problem))
        return result

    return call


def _globals(function: types.FunctionType) -> Namespace:
    """The variables of its module that a function names."""
    known, code = function.__globals__, function.__code__
    return {name: known[name] for name in code.co_names if name in known}


def _containers(value: Any) -> set[int]:
    every = torch_private.trees.walk(value, objects=True)
    return {id(part) for _, part in every if isinstance(part, list | dict)}


def _plain_values(value: Any) -> list[tuple[str, object]]:
    found = torch_private.trees.values_of(value, "")
    return [(n, v) for n, v in found.items() if not isinstance(v, Tensor)]
