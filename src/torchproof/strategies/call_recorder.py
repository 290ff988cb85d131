"""Runs a target's calls in eager and notes which module was called, and fed by whom.

What comes out of a module carries that module's bit, and every torch function hands
the bits of its inputs on to its outputs. So a block whose input has the bit of another
is called in sequence with it, whatever is computed in between, and an expert whose
input has not is its neighbour's equal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from torchproof.process import forks
from torchproof.strategies.plan import Varying

Where = tuple[int | str, ...]


def tensors_in(value: Any, where: Where = ()) -> Iterator[tuple[Where, Tensor]]:
    """The tensors in nested tuples, lists and dicts, and the way to each."""
    return _found(value, where, _items)


def every_tensor(value: Any) -> Iterator[Tensor]:
    """The tensors in nested containers, the fields of dataclasses among them."""
    return (tensor for _, tensor in _found(value, None, _items_and_fields))


def _found(value: Any, where: Any, items: _Items) -> Iterator[tuple[Any, Tensor]]:
    """Without recursion, and each container once: it may hold itself.

    The way to a tensor is added to `where`, unless that is None.
    """
    waiting, seen = [(where, value)], set()
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, Tensor):
            yield where, value
            continue
        parts = list(items(value))
        if parts and id(value) not in seen:
            seen.add(id(value))
            waiting += [
                (None if where is None else (*where, key), item)
                for key, item in reversed(parts)
            ]


_Items = Callable[[Any], Iterable[tuple[int | str, Any]]]


def _items_and_fields(value: Any) -> Iterable[tuple[int | str, Any]]:
    fields = vars(value).items() if dataclasses.is_dataclass(value) else ()
    return (*_items(value), *fields)


def _items(value: Any) -> Iterable[tuple[int | str, Any]]:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return enumerate(value)
    return ()


class Sizes:
    """The sizes each tensor of a callable's arguments had."""

    def __init__(self) -> None:
        self._seen: defaultdict[Where, set[torch.Size]] = defaultdict(set)

    def note(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        for where, tensor in tensors_in({**dict(enumerate(args)), **kwargs}):
            self._seen[where].add(tensor.shape)

    def add(self, other: Sizes) -> None:
        for where, shapes in other._seen.items():
            self._seen[where] |= shapes

    @property
    def varying(self) -> Varying:
        """The dimensions that took more than one size, of tensors of one rank."""
        found = {}
        for where, shapes in self._seen.items():
            if len({len(shape) for shape in shapes}) == 1:
                columns = zip(*shapes, strict=True)
                sizes = tuple(d for d, seen in enumerate(columns) if len(set(seen)) > 1)
                if sizes:
                    found[where] = sizes
        return found


@dataclass(frozen=True)
class FirstCall:
    """The first call of a module: which call of its parent it was made in, fed by whom.

    `fed_by` has the bit of every module that its input depends on.
    """

    parent: int
    fed_by: int


class CallRecorder(TorchFunctionMode):
    """What the calls of a target showed; enter it, then run them.

    Calls of other threads meanwhile are none of its business.
    """

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        modules = {path: module for path, module in root.named_modules() if path}
        self.bits = {path: 1 << number for number, path in enumerate(modules)}
        self.first_calls: dict[str, FirstCall] = {}  # in the order of the first calls
        self.looped: set[str] = set()  # fed by their own output, in one parent's call
        self.sizes: defaultdict[str, Sizes] = defaultdict(Sizes)
        self._origins = WeakIdKeyDictionary()
        self._numbers = itertools.count(1)
        self._open = [0]  # the numbers of the calls under way
        self._inside = 0  # the bits of the modules they are calls of
        self._last_parent: dict[str, int] = {}
        self._hooks = contextlib.ExitStack()
        self._modules = modules

    def __enter__(self) -> CallRecorder:
        self._thread = threading.get_ident()
        self._hooks.enter_context(forks.undone_in_fork(self._hooks.close))
        for path, module in self._modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # its hooks would have to be scripted
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
            # What returns nothing, as an assignment to a part, changes its first input.
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
        for tensor in every_tensor(value):
            bits |= self._origins.get(tensor, 0)
        return bits

    def _carry(self, value: Any, bits: int) -> None:
        for tensor in every_tensor(value):
            self._origins[tensor] = self._origins.get(tensor, 0) | bits


@contextlib.contextmanager
def recording_sizes(owner: Any, name: str, sizes: Sizes) -> Iterator[None]:
    """Every call of a method, with the sizes that went in."""
    method = getattr(owner, name)
    own = vars(owner).get(name)

    def note(*args: Any, **kwargs: Any) -> Any:
        sizes.note(args, kwargs)
        return method(*args, **kwargs)

    setattr(owner, name, note)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def run(
    fn: Callable[..., Any],
    calls: Sequence[Any],
    before: Callable[[int], None] | None,
) -> None:
    """The calls in order, in eager, whatever in them is compiled already."""
    with torch.compiler.set_stance("force_eager"):
        for index, call in enumerate(calls):
            if before is not None:
                before(index)
            fn(**call) if isinstance(call, dict) else fn(*call)
