"""Everything a step can see besides its arguments, watched for changes.

A replay runs the kernels of one recorded run on the memory of that run. What Python
would have looked at again (attributes, modules, parameters that were replaced, values
in closures and globals) it does not look at: so it is compared before an answer is
handed out. The comparison is by identity, at C speed; only where something is not the
very same object it is looked at one by one.

Modules are watched whole. Of other objects and of globals only those attributes count
that the step's own code names: a trainer's counter may change with every call.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchproof.places import whose

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MOST_OBJECTS = 20_000
_LEFT_OUT = (  # they keep books of their own while a step runs
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
_HOOKS += ("_backward_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks")


class Sight:
    """What was found, and how it was when `refresh` was called last."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self._dicts: list[tuple[str, dict[Any, Any]]] = []
        self._lists: list[tuple[str, list[Any]]] = []
        self._named: list[tuple[str, dict[str, Any], str]] = []
        self._cells: list[tuple[str, types.CellType]] = []
        self._tensors: dict[int, tuple[str, Tensor]] = {}
        self._seen: dict[int, Any] = {}
        self._names: set[str] = set()
        self._visit("step", step)
        self._contents = [each for _, each in self._dicts], [e for _, e in self._lists]
        self._scopes = [scope for _, scope, _ in self._named]
        self._keys = [name for _, _, name in self._named]
        self._closed = [cell for _, cell in self._cells]
        self.refresh()

    # -- finding -------------------------------------------------------------------

    def _visit(self, label: str, value: Any) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        if len(self._seen) > _MOST_OBJECTS:
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            self._tensors[id(value)] = label, value
        elif isinstance(value, nn.Module):
            self._visit_module(label, value)
        elif isinstance(value, _LEFT_OUT):
            self._visit_keeper(label, value)
        elif isinstance(value, types.MethodType):
            self._visit(label, value.__func__)
            self._visit(_short(label, "self"), value.__self__)
        elif isinstance(value, types.FunctionType):
            self._visit_function(label, value)
        elif isinstance(value, dict):
            self._dicts.append((label, value))
            for key, part in list(value.items()):
                self._visit(f"{label}[{key!r}]", part)
        elif isinstance(value, list | tuple | set | frozenset):
            if isinstance(value, list):
                self._lists.append((label, value))
            for number, part in enumerate(value):
                self._visit(f"{label}[{number}]", part)
        elif not isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
            self._visit_object(label, value)

    def _visit_module(self, label: str, module: nn.Module) -> None:
        self.modules.append(module)
        self._dicts.append((label, module.__dict__))
        for part in ("_parameters", "_buffers", "_modules"):
            self._dicts.append((label, module.__dict__[part]))
            for name, value in module.__dict__[part].items():
                self._visit(f"{label}.{name}", value)
        for name in _HOOKS:
            if hooks := module.__dict__.get(name):
                self._dicts.append((f"{label}.{name}", hooks))
        of_torch = vars(nn.Module()).keys()
        for name, value in list(module.__dict__.items()):
            if name not in of_torch:
                self._visit(f"{label}.{name}", value)

    def _visit_keeper(self, label: str, keeper: Any) -> None:
        """Books that replays keep up to date themselves: the tensors in them matter."""
        if isinstance(keeper, torch.optim.Optimizer):
            self.optimizers.append(keeper)
            for number, group in enumerate(keeper.param_groups):
                self._visit(
                    f"{label}.param_groups[{number}]['params']", group["params"]
                )
        elif isinstance(keeper, torch.amp.GradScaler):
            self.scalers.append(keeper)

    def _visit_function(self, label: str, function: types.FunctionType) -> None:
        if whose(function.__code__.co_filename) != "user" and label != "step":
            return
        names = set(_names_in(function.__code__))
        self._names |= names
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._cells.append((name, cell))
            if (value := _contents(cell)) is not cell:
                self._visit(name, value)
        for value in (function.__defaults__, function.__kwdefaults__):
            self._visit(f"{label}'s defaults", value)
        scope = function.__globals__
        for name in sorted(names & scope.keys()):
            if not isinstance(scope[name], types.ModuleType | type):
                self._named.append((name, scope, name))
                self._visit(name, scope[name])

    def _visit_object(self, label: str, value: Any) -> None:
        if type(value).__module__.partition(".")[0] in ("torch", "builtins", "logging"):
            return
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        if isinstance(call := vars(type(value)).get("__call__"), types.FunctionType):
            self._visit_function(label, call)
        for name, part in list(attributes.items()):
            if name in self._names:
                self._named.append((f"{label}.{name}", attributes, name))
                self._visit(f"{label}.{name}", part)

    @property
    def parameters(self) -> list[tuple[str, Tensor]]:
        """Leaves that may get a gradient, each once."""
        return [
            (label, tensor)
            for label, tensor in self._tensors.values()
            if tensor.is_leaf and tensor.is_floating_point()
        ]

    @property
    def buffers(self) -> list[Tensor]:
        return [
            buffer
            for module in self.modules
            for buffer in module.buffers(recurse=False)
        ]

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for _, tensor in self._tensors.values()]

    # -- watching ------------------------------------------------------------------

    def refresh(self) -> None:
        """From here on, changes are those since this moment."""
        self._values = list(self._every_value())
        self._sizes = self._count()
        self._states = [each.state for each in self.optimizers]
        self._books = [book for state in self._states for book in state.values()]
        self._entries = list(_every(self._books))
        self._watched = [tensor for _, tensor in self._tensors.values()]
        self._watched += [each for each in self._entries if isinstance(each, Tensor)]
        # Storages stay while they are watched: no other tensor gets their address.
        self._kept = [tensor.detach() for tensor in self._watched]
        self._addresses = list(map(Tensor.data_ptr, self._watched))
        self._learning = list(map(_requires_grad, self._watched))
        self._hooked = RemovableHandle.next_id

    def unchanged(self) -> bool:
        """Whether everything is the very same as when it was refreshed."""
        return (
            RemovableHandle.next_id == self._hooked
            and self._count() == self._sizes
            and all(map(operator.is_, self._every_value(), self._values))
            and list(map(Tensor.data_ptr, self._watched)) == self._addresses
            and list(map(_requires_grad, self._watched)) == self._learning
            and self._states_are_there()
        )

    def _states_are_there(self) -> bool:
        """Whether the optimizers work on the state that they worked on."""
        now = [each.state for each in self.optimizers]
        return (
            all(map(operator.is_, now, self._states))
            and sum(map(len, now)) == len(self._books)
            and sum(map(len, self._books)) == len(self._entries)
            and all(map(operator.is_, _every(self._books), self._entries))
        )

    def changes(self) -> list[str]:
        """What is not equal any more, in words; equal things are taken as they are."""
        told = [
            f"{label} was {_shown(then)} and is {_shown(now)}"
            for label, then, now in self._differing()
        ]
        if not told and self._count() != self._sizes:
            told.append("something was added or taken away")
        labels = [label for label, _ in self._tensors.values()]
        pairs = zip(
            itertools.chain(labels, itertools.repeat("state of an optimizer")),
            self._watched,
            self._addresses,
            self._learning,
            strict=False,
        )
        for label, tensor, address, learning in pairs:
            if tensor.data_ptr() != address:
                told.append(f"{label} lies elsewhere in memory")
            elif tensor.requires_grad != learning:
                told.append(f"{label}.requires_grad is {tensor.requires_grad}")
        if not self._states_are_there():
            told.append("the state of an optimizer was replaced")
        for module in self.modules:
            for name in _HOOKS:
                hooks = module.__dict__.get(name)
                watched = any(hooks is each for _, each in self._dicts)
                if hooks and not watched:
                    told.append(f"a hook was added to a {type(module).__name__}")
        return told

    def moved(self) -> bool:
        """Whether a tensor lies elsewhere in memory, or was replaced by another."""
        if list(map(Tensor.data_ptr, self._watched)) != self._addresses:
            return True
        return not self._states_are_there() or any(
            isinstance(then, Tensor) for _, then, _ in self._differing()
        )

    def _differing(self) -> Iterator[tuple[str, Any, Any]]:
        before = iter(self._values)
        for label, part, live in self._every_label():
            then = next(before, _GONE)
            if live is not then and not _equal(live, then):
                yield f"{label}.{part}" if part else label, then, live
                if self._count() != self._sizes:
                    return  # what follows is out of step

    def _every_value(self) -> Iterator[Any]:
        dicts, lists = self._contents
        return itertools.chain(
            _every(dicts),
            itertools.chain.from_iterable(lists),
            map(dict.get, self._scopes, self._keys, itertools.repeat(_GONE)),
            map(_contents, self._closed),
        )

    def _every_label(self) -> Iterator[tuple[str, str, Any]]:
        for label, each in self._dicts:
            for key, value in each.items():
                yield label, str(key), value
        for label, items in self._lists:
            for number, value in enumerate(items):
                yield label, str(number), value
        for label, scope, name in self._named:
            yield label, "", scope.get(name, _GONE)
        for label, cell in self._cells:
            yield label, "", _contents(cell)

    def _count(self) -> int:
        dicts, lists = self._contents
        return sum(map(len, dicts)) + sum(map(len, lists))


_GONE = object()
_requires_grad = operator.attrgetter("requires_grad")


def _every(dicts: Iterable[dict[Any, Any]]) -> Iterator[Any]:
    return itertools.chain.from_iterable(map(dict.values, dicts))


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has not been assigned yet
        return cell


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _equal(one: Any, other: Any) -> bool:
    """Numbers and words may be equal without being the same object; NaN is NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, _PLAIN):
        return bool(one == other) or (one != one and other != other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, types.MethodType):
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    return False


def _shown(value: Any) -> str:
    if value is _GONE:
        return "not there"
    if isinstance(value, _PLAIN):
        return repr(value)
    return f"a {type(value).__name__}"


def _short(label: str, name: str) -> str:
    return name if label == "step" else f"{label}.{name}"
