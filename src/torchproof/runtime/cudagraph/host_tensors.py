"""Which tensors in host memory have the same content in every replay of a step.

A kernel launch reads a host tensor without dimensions as a number, and Python reads one
with `.item()`. A replay does neither again. That is right if the number follows from
Python's constants and from state that is watched anyway, and wrong if it comes from
host memory that existed before the step, or from a random generator.

`HostTensors` follows the operations of one eager run. Tensors that torch makes from
Python data arrive as `lift_fresh`: `torch.tensor(2.0)`, and the number in `x[0] = 2`.
Functions of TorchScript make them without an operation; no Python code holds those.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchproof.runtime.cudagraph.reachable_state import has_plain_memory
from torchproof.runtime.tensors.storages import Key, key_of
from torchproof.torch_private import EagerDispatchMode

_PURE = ("aten", "prim", "prims")  # a custom operator may read anything
_FROM_PYTHON = "lift_fresh"
_FRACTION = "rand"  # at least 0, and less than 1


class HostTensors:
    """Follows the host tensors of one run; `outside` existed before it."""

    def __init__(self, outside: Iterable[Tensor] = ()) -> None:
        _references_of_new()  # not while it follows a run
        self._outside = {key_of(each) for each in outside if is_host(each)}
        self._constant: set[Key] = set()
        self._varying: set[Key] = set(self._outside)
        self._fractions: set[Key] = set()
        self._all_constant = not self._outside

    def varies(self, tensor: Tensor) -> bool:
        """Whether its content may be another one at the next call."""
        return is_host(tensor) and key_of(tensor) not in self._constant

    def meet(self, args: tuple[Any, ...]) -> None:
        """Takes tensors that no operation made and no Python code holds as constant.

        It must be the first that is done with the arguments of an operation.
        """
        for each, count in zip(args, _references(args), strict=True):
            if count > _references_of_new() or not isinstance(each, Tensor):
                continue
            if is_host(each) and key_of(each) not in self._varying:
                self._constant.add(key_of(each))

    def note(
        self, func: Any, args: Any, taken: Iterable[Tensor], given: Iterable[Tensor]
    ) -> None:
        """Follows one operation: what it takes, and what it returns or writes."""
        keys = {key_of(each) for each in given if is_host(each)}
        if not keys:
            return
        is_constant = self._makes_constants(func, args, list(taken))
        self._all_constant &= is_constant
        for known in (self._constant, self._varying, self._fractions):
            known -= keys
        (self._constant if is_constant else self._varying).update(keys)
        if func.overloadpacket.__name__ == _FRACTION:
            self._fractions |= keys

    def _makes_constants(self, func: Any, args: Any, taken: list[Tensor]) -> bool:
        name = func.overloadpacket.__name__
        if name == _FROM_PYTHON:
            # The parts of a list may be host tensors, which torch reads out of sight.
            is_one_number = not taken[0].dim() or self._all_constant
            return is_one_number and key_of(taken[0]) not in self._outside
        is_pure = func.namespace in _PURE
        if any(map(self.varies, taken)):
            return is_pure and self._is_decided(name, args)
        if any(each.device.type != "cpu" for each in taken):
            # It did not wait for the device, so this is the state of its generator,
            # which attention keeps on the device during a capture.
            return True
        return is_pure and torch.Tag.nondeterministic_seeded not in func.tags

    def _is_decided(self, name: str, args: Any) -> bool:
        """Whether it compares a drawn fraction with a number outside of its range.

        `torch.rand([]) < self.layerdrop` draws also if the probability is 0.
        """
        if len(args) != 2 or not isinstance(args[0], Tensor):
            return False
        if key_of(args[0]) not in self._fractions or type(args[1]) not in (int, float):
            return False
        if name in ("lt", "ge"):
            return bool(args[1] <= 0 or args[1] >= 1)
        return name in ("gt", "le") and bool(args[1] < 0 or args[1] >= 1)


def is_host(tensor: Tensor) -> bool:
    """Whether it has content in host memory."""
    return (
        tensor.device.type == "cpu"
        and bool(tensor.numel())
        and has_plain_memory(tensor)
    )


def _references(args: tuple[Any, ...]) -> list[int]:
    return [sys.getrefcount(each) for each in args]


@functools.cache
def _references_of_new() -> int:
    """The references to an argument of an operation that nothing else refers to."""
    probe = _Probe()
    with probe:
        torch.tensor(0.0)
    return probe.references


class _Probe(EagerDispatchMode):
    references = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.references = _references(args)[0]
        return func(*args, **(kwargs or {}))
