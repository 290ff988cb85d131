"""Everything a step can reach besides its arguments, found from its code.

In comes the step. Out go the containers it could look into: modules, dicts, lists and
sets; attributes of other objects, of classes, and globals, as far as its own code names
them; variables of enclosing functions; tensors and optimizers.

Code is followed from the step and from the `forward` of modules to functions that it
names, and to methods by their name. Of installed packages only the names of attributes
count: their globals are taken to stay as they are. torch's own code is not followed.
"""

from __future__ import annotations

import collections
import dis
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from torchproof.places import whose

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"),
    *("_backward_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks"),
)
_MOST_OBJECTS = 20_000
_LEFT_OUT = (  # they keep books of their own while a step runs
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
)
_ENTRIES = frozenset({"forward", "__call__"})
_CONSTANT = (type, types.ModuleType, types.BuiltinFunctionType)
_FOREIGN = ("torch", "builtins", "logging")  # objects of these are not looked into
_OF_MODULES = frozenset(vars(nn.Module()))


class Reach:
    """What was found, each with a label for people."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._names: set[str] = set(_ENTRIES)  # of attributes, in all code that counts
        known = -1
        while known < len(self._names):  # a later function may name more attributes
            known = len(self._names)
            self._clear()
            self._visit("step", step)
        del self._seen

    def _clear(self) -> None:
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self.dicts: list[tuple[str, dict[Any, Any]]] = []
        self.lists: list[tuple[str, Any]] = []
        self.keyed: list[tuple[str, Any]] = []  # dicts and sets, for their keys
        self.arrays: list[tuple[str, Any]] = []
        self.named: list[tuple[str, dict[str, Any], str]] = []
        self.attributes: list[tuple[str, Any, str]] = []  # of classes, and in slots
        self.cells: list[tuple[str, types.CellType]] = []
        self.tensors: dict[int, tuple[str, Tensor]] = {}
        self.strange: list[tuple[str, Tensor]] = []  # whose memory cannot be watched
        self.whole = True
        self._seen: dict[int, Any] = {}

    def _visit(self, label: str, value: Any) -> None:
        if isinstance(value, PLAIN) or id(value) in self._seen:
            return
        if len(self._seen) > _MOST_OBJECTS:
            self.whole = False
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            if has_plain_memory(value):
                self.tensors[id(value)] = label, value
            else:
                self.strange.append((label, value))
        elif isinstance(value, nn.Module):
            self._visit_module(label, value)
        elif isinstance(value, _LEFT_OUT):
            self._visit_keeper(label, value)
        elif isinstance(value, types.MethodType):
            self._visit(label, value.__func__)
            self._visit(_short(label, "self"), value.__self__)
        elif isinstance(value, types.FunctionType):
            self._visit_function(label, value)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._visit(label, part)
        elif isinstance(value, numpy.ndarray):
            self.arrays.append((label, value))
        elif not isinstance(value, _CONSTANT) and not self._visit_parts(label, value):
            self._visit_object(label, value)

    def _visit_parts(self, label: str, value: Any) -> bool:
        """Whether the value is a container, all of whose parts count."""
        if isinstance(value, dict):
            self.dicts.append((label, value))
            self.keyed.append((label, value))
            for key, part in list(value.items()):
                self._visit(f"{label}[{key!r}]", part)
        elif isinstance(value, list | tuple | collections.deque):
            if not isinstance(value, tuple):
                self.lists.append((label, value))
            for number, part in enumerate(value):
                self._visit(f"{label}[{number}]", part)
        elif isinstance(value, set | frozenset):
            self.keyed.append((label, value))
            for number, part in enumerate(value):
                self._visit(f"{label}[{number}]", part)
        else:
            return False
        return True

    def _visit_module(self, label: str, module: nn.Module) -> None:
        self.modules.append(module)
        self.dicts.append((label, module.__dict__))
        for part in ("_parameters", "_buffers", "_modules"):
            self.dicts.append((label, module.__dict__[part]))
            for name, value in module.__dict__[part].items():
                self._visit(f"{label}.{name}", value)
        for name in HOOKS:
            if hooks := module.__dict__.get(name):
                self.dicts.append((f"{label}.{name}", hooks))
                for hook in list(hooks.values()):
                    self._visit(f"{label}.{name}", hook)
        for name, value in list(module.__dict__.items()):
            if name not in _OF_MODULES:
                self._visit(f"{label}.{name}", value)
        self._visit_class(label, type(module))

    def _visit_keeper(self, label: str, keeper: Any) -> None:
        """Books that replays keep up to date themselves: the tensors in them matter."""
        if isinstance(keeper, torch.optim.Optimizer):
            self.optimizers.append(keeper)
            for number, group in enumerate(keeper.param_groups):
                place = f"{label}.param_groups[{number}]['params']"
                self._visit(place, group["params"])
        elif isinstance(keeper, torch.amp.GradScaler):
            self.scalers.append(keeper)

    def _visit_function(self, label: str, function: types.FunctionType) -> None:
        owner = whose(function.__code__.co_filename)
        if owner not in ("user", "library") and label != "step":
            return
        read, attributes = _names_in(function.__code__)
        self._names |= attributes
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self.cells.append((name, cell))
            if (value := contents(cell)) is not cell:
                self._visit(name, value)
        for value in (function.__defaults__, function.__kwdefaults__):
            self._visit(f"{label}'s defaults", value)
        scope = function.__globals__
        for name in sorted(read):
            value = scope.get(name)
            if owner == "library" and not isinstance(value, types.FunctionType):
                continue
            if name in scope and not isinstance(value, type | types.ModuleType):
                if owner != "library":
                    self.named.append((name, scope, name))
                self._visit(name, value)

    def _visit_object(self, label: str, value: Any) -> None:
        if _is_foreign(type(value)):
            return
        self._visit_class(label, type(value))
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            of_class = {name for kind in type(value).__mro__ for name in vars(kind)}
            for name in sorted(self._names & (held.keys() | of_class)):
                self.named.append((f"{label}.{name}", held, name))
                self._visit(f"{label}.{name}", held.get(name))
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            own = {slots} if isinstance(slots, str) else {*slots}
            for name in sorted(self._names & own):
                self.attributes.append((f"{label}.{name}", value, name))
                self._visit(f"{label}.{name}", getattr(value, name, None))

    def _visit_class(self, label: str, kind: type) -> None:
        """Methods and values of a class, and of those it is made from, by name."""
        if id(kind) in self._seen:
            return
        self._seen[id(kind)] = kind
        for each in kind.__mro__:
            if _is_foreign(each):
                continue
            for name in sorted(self._names & vars(each).keys()):
                value = _function_of(vars(each)[name])
                if isinstance(value, types.MemberDescriptorType):
                    continue  # a slot
                if name in self._names - {"__call__"} and _lasts(kind, name):
                    self.attributes.append((f"{label}.{name}", kind, name))
                self._visit(f"{label}.{name}", value)


def has_plain_memory(tensor: Tensor) -> bool:
    """Whether a tensor is what lies at one address: not sparse, lazy or a wrapper."""
    return (
        tensor.layout is torch.strided
        and not hasattr(tensor, "__tensor_flatten__")
        and not nn.parameter.is_lazy(tensor)
    )


def contents(cell: types.CellType) -> Any:
    """The cell itself, if its variable has not been assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _is_foreign(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _FOREIGN


def _function_of(value: Any) -> Any:
    """What a descriptor of a class calls."""
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _lasts(kind: type, name: str) -> bool:
    """Whether asking twice gives the same object."""
    return getattr(kind, name, None) is getattr(kind, name, None)


@functools.cache
def _names_in(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the globals that the code reads, and of attributes."""
    read, attributes = set[str](), set[str]()
    for step in dis.get_instructions(code):
        if step.argval in code.co_names:
            of_globals = step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
            (read if of_globals else attributes).add(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names_in(constant)
            read, attributes = read | inner[0], attributes | inner[1]
    return frozenset(read), frozenset(n for n in attributes if not n.startswith("__"))


def _short(label: str, name: str) -> str:
    return name if label == "step" else f"{label}.{name}"
