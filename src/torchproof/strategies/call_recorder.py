"""Runs a target's calls in eager and records which modules feed which others.

Each module has a bit. The outputs of a module get its bit, and every torch function
passes the bits of its inputs on to its outputs. So a block whose input has the bit of
another one runs after it in sequence, whatever is computed between them. Experts of one
layer do not have each other's bits.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from torchproof.process import forks
from torchproof.records import Keywords
from torchproof.strategies.plan import Varying
from torchproof.torch_private import trees


class Sizes:
    """The shapes of each tensor among a callable's arguments."""

    def __init__(self) -> None:
        self._shapes: defaultdict[trees.Path, set[torch.Size]] = defaultdict(set)

    def note(self, args: Sequence[Any], kwargs: Keywords) -> None:
        for path, tensor in trees.tensor_paths({**dict(enumerate(args)), **kwargs}):
            self._shapes[path].add(tensor.shape)

    def add(self, other: Sizes) -> None:
        for path, shapes in other._shapes.items():
            self._shapes[path] |= shapes

    @property
    def varying(self) -> Varying:
        """The dimensions that had more than one size, of tensors with a fixed rank."""
        varying = {}
        for path, shapes in self._shapes.items():
            if len({len(shape) for shape in shapes}) == 1:
                columns = enumerate(zip(*shapes, strict=True))
                dimensions = tuple(d for d, sizes in columns if len(set(sizes)) > 1)
                if dimensions:
                    varying[path] = dimensions
        return varying


@dataclass(frozen=True)
class FirstCall:
    """The first call of a module: the number of its parent's call, and who feeds it.

    `fed_by` has the bit of every module that the input depends on.
    """

    parent: int
    fed_by: int


class CallRecorder(TorchFunctionMode):
    """Records the calls that run inside its `with` block, in this thread only."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        modules = {path: module for path, module in root.named_modules() if path}
        self.bits = {path: 1 << number for number, path in enumerate(modules)}
        self.first_calls: dict[str, FirstCall] = {}  # in the order of the first calls
        self.looped: set[str] = set()  # fed by their own output in one parent's call
        self.sizes: defaultdict[str, Sizes] = defaultdict(Sizes)
        self._origins = WeakIdKeyDictionary()
        self._numbers = itertools.count(1)
        self._open = [0]  # the numbers of the running calls
        self._inside = 0  # the bits of the modules with a running call
        self._last_parent: dict[str, int] = {}
        self._hooks = contextlib.ExitStack()
        self._modules = modules

    def __enter__(self) -> CallRecorder:
        self._thread = threading.get_ident()
        self._hooks.enter_context(forks.undone_in_fork(self._hooks.close))
        for path, module in self._modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # hooks of a scripted module would have to be scripted
            begin = module.register_forward_pre_hook(
                self._begin(path), prepend=True, with_kwargs=True
            )
            end = module.register_forward_hook(self._end(path), always_call=True)
            self._hooks.callback(begin.remove)
            self._hooks.callback(end.remove)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._hooks.close()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if bits := self._inside | self._bits_of((args, kwargs)):
            # A function that returns nothing, such as setitem, changes its first input.
            self._carry(args[:1] if result is None else result, bits)
        return result

    def _begin(self, path: str) -> Callable[..., None]:
        def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
            if threading.get_ident() != self._thread:
                return
            fed_by, parent = self._bits_of((args, kwargs)), self._open[-1]
            self.first_calls.setdefault(path, FirstCall(parent, fed_by))
            if fed_by & self.bits[path] and self._last_parent[path] == parent:
                self.looped.add(path)
            self._last_parent[path] = parent
            self.sizes[path].note(args, kwargs)
            self._open.append(next(self._numbers))
            self._inside |= self.bits[path]

        return begin

    def _end(self, path: str) -> Callable[..., None]:
        def end(module: nn.Module, args: Any, output: Any) -> None:
            if threading.get_ident() != self._thread:
                return
            self._open.pop()
            self._inside &= ~self.bits[path]
            self._carry(output, self._bits_of(args) | self.bits[path])

        return end

    def _bits_of(self, value: Any) -> int:
        bits = 0
        for tensor in trees.tensors(value):
            bits |= self._origins.get(tensor, 0)
        return bits

    def _carry(self, value: Any, bits: int) -> None:
        for tensor in trees.tensors(value):
            self._origins[tensor] = self._origins.get(tensor, 0) | bits


@contextlib.contextmanager
def recording_sizes(owner: Any, name: str, sizes: Sizes) -> Iterator[None]:
    """Records the input sizes of every call of a method."""
    method = getattr(owner, name)
    own_attribute = vars(owner).get(name)

    def note(*args: Any, **kwargs: Any) -> Any:
        sizes.note(args, kwargs)
        return method(*args, **kwargs)

    setattr(owner, name, note)
    try:
        yield
    finally:
        if own_attribute is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own_attribute)


def run(
    fn: Callable[..., Any],
    calls: Sequence[Any],
    before: Callable[[int], None] | None,
) -> None:
    """Runs the calls in order and in eager, also if the target is compiled already."""
    with torch.compiler.set_stance("force_eager"):
        for index, call in enumerate(calls):
            if before is not None:
                before(index)
            fn(**call) if isinstance(call, dict) else fn(*call)
