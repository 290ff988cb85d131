"""A dispatch mode that reports every operation of a program before it runs.

It does not see operations inside compiled code, and Dynamo does not see the mode.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchproof.records import Keywords
from torchproof.torch_private import trees

# Operations that create a tensor like another, or query it, without reading its values.
_READ_NO_VALUES = (
    "empty",
    "zeros",
    "ones",
    "full",
    "rand",
    "new_",
    "sym_",
    "is_",
    "size",
)
_READING = {"tolist", "numpy", "__deepcopy__", "__reduce_ex__"}
# These methods call no operation if the tensor is on the CPU.
_METHODS = (*sorted(_READING), "cpu", "to")
_ORIGINALS = {
    name: vars(torch.Tensor)[name] for name in _METHODS if name in vars(torch.Tensor)
}
_ALIASES = {"detach", "alias", "lift_fresh", "_reshape_alias", "view", "_unsafe_view"}


class Operations(TorchDispatchMode):
    """Calls `see(name, tensors)` before each operation that reads or writes tensors.

    If `is_graphs(tensor)`, the tensor stands for one on CUDA. Methods that would copy
    such a tensor to the host then copy it here as well.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        see: Callable[[str, list[Any]], None],
        is_graphs: Callable[[torch.Tensor], bool],
    ) -> None:
        super().__init__()
        self._see = see
        self._is_graphs = is_graphs

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _reads_no_values(func):
            tensors = list(trees.tensors((args, kwargs)))
            if tensors:
                self._see(_name(func), tensors)
        return func(*args, **kwargs)

    def __enter__(self) -> Any:
        self._watch_methods()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._restore_methods()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Removes the mode and the patched methods, while Dynamo traces."""
        self._restore_methods()
        try:
            with without_modes():
                yield
        finally:
            self._watch_methods()

    def _watch_methods(self) -> None:
        for name in _METHODS:
            setattr(torch.Tensor, name, self._watched(name))

    def _restore_methods(self) -> None:
        for name in _METHODS:
            if name in _ORIGINALS:
                setattr(torch.Tensor, name, _ORIGINALS[name])
            else:  # inherited
                delattr(torch.Tensor, name)

    def _watched(self, name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        @functools.wraps(original)
        def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if name in _READING:
                self._see(name, [tensor])
            if _goes_to_host(name, args, kwargs) and self._is_graphs(tensor):
                tensor = tensor.clone()
            return original(tensor, *args, **kwargs)

        return method

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Lets Dynamo compile frames under this mode; by default it skips them."""
        return True


def _goes_to_host(name: str, args: Sequence[Any], kwargs: Keywords) -> bool:
    if name != "to":
        return name in {"cpu", "numpy"}
    where = kwargs.get("device", args[0] if args else None)
    return isinstance(where, (str, torch.device)) and str(where) == "cpu"


@functools.cache
def _reads_no_values(func: Any) -> bool:
    name = _name(func)
    if name in _ALIASES or name.startswith(_READ_NO_VALUES):
        return True
    return bool(getattr(func, "is_view", False))


@functools.cache
def _name(func: Any) -> str:
    packet = getattr(func, "_overloadpacket", func)
    return str(getattr(packet, "__name__", packet)).rpartition(".")[2]


def without_modes() -> Any:
    """A context without dispatch modes, so that operations in it are not seen."""
    dispatch = importlib.import_module("torch.utils._python_dispatch")
    return dispatch._disable_current_modes()
