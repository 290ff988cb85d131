"""Finds all state that a step can reach besides its arguments.

Takes the step and the code that ran in an eager call (`Execution`). Returns the places
that this code could read: modules, dicts, lists and sets; attributes of other objects,
of classes and of Python modules, and globals, if the code names them; variables of
enclosing functions; tensors and optimizers.

Functions that ran are followed wherever they come from. Other functions of the user and
of libraries are followed if code names them, and either nothing has run yet, or the
user has a custom backward, which runs in another thread, out of sight of the profiler.
Names that torch and the standard library use count only for objects of their own
classes; otherwise they would match any attribute of the same name.
"""

from __future__ import annotations

import builtins
import collections
import contextvars
import ctypes
import functools
import gc
import io
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from torchproof.records import Namespace, whose
from torchproof.runtime.cudagraph.executed_code import (
    Execution,
    Reads,
    owner_of,
    reads_of,
)
from torchproof.runtime.cudagraph.object_state import (
    ATOMS,
    BYTES,
    CACHED,
    CONTAINERS,
    GETTERS,
    NUMBERS_IN_C,
    TENSOR_HOOKS,
    hidden,
    words,
)
from torchproof.runtime.cudagraph.optimizers import recorded_settings
from torchproof.runtime.cudagraph.watched_places import (
    CELL,
    CONTEXT,
    FUNCTION,
    GONE,
    HEAP_TYPE,
    LOCAL,
    REFERENCE,
    VALUES,
    Watches,
    contents,
    dict_of,
    dict_of_class,
    in_slot,
    isinstance_of,
    items_of,
    mro_of,
    slots_of,
)

PLAIN = (*ATOMS, torch.dtype, torch.device)
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)
_MOST_OBJECTS = 20_000
_SELF_UPDATING = (  # their own state changes at every step
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
)
_UPDATED = frozenset({"state", "param_groups", "_per_optimizer_states"})
_OWN = ("user", "library")
_ENTRIES = frozenset({"forward", "__call__"})
_OF_BACKWARD = frozenset({"backward", "vjp", "jvp", "setup_context"})
# Entries of a class that no code reads implicitly.
_UNREAD = words(
    """
    __module__ __doc__ __dict__ __weakref__ __annotations__ __qualname__ __slots__
    __firstlineno__ __static_attributes__ __abstractmethods__ __parameters__
    __orig_bases__ __match_args__ __dataclass_params__ __annotate__
    __annotations_cache__ __dataclass_fields__ __init_subclass__ __subclasshook__
    """
)
_OF_TYPES = frozenset({"__name__", "__qualname__"})  # in the C struct
_OF_FUNCTIONS = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
_OF_MODULES = frozenset(vars(nn.Module()))
_IMMUTABLE_TYPE = 1 << 8
_SMALL = 256  # larger containers of torch are caches


class ReachableState:
    """The reachable places, each with a label for messages.

    An attribute counts if code names it, and that code is found by the same walk. So
    the walk is repeated from the start until it meets no code with new names. With
    `only_run`, only the places count that the executed code reads.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        ran: Execution | None = None,
        *,
        only_run: bool = False,
    ) -> None:
        self._ran = Execution() if ran is None else ran
        self._only_run = only_run
        # Attribute names in code of the user and of libraries; and these with those in
        # code of torch and the standard library.
        self._own_names: set[str] = set(_ENTRIES)
        self._all_names: set[str] = set(_ENTRIES)
        # Whether to follow functions that did not run.
        self._follows_unrun = not self._ran.codes
        for code in self._ran.codes:
            self._add_names(code)
        size = -1
        while size < (new_size := self._size()):  # visited code adds names
            size = new_size
            self._clear()
            self._visit("step", step)
            self._visit_what_ran()
        del self._seen, self._entered, self._named_already

    def _size(self) -> int:
        return len(self._own_names) + len(self._all_names) + self._follows_unrun

    def _clear(self) -> None:
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self.watches = Watches()
        self.arrays: list[tuple[str, Any]] = []  # compared by value
        self.caches: list[tuple[str, dict[Any, Any]]] = []
        self.tensors: dict[int, tuple[str, Tensor]] = {}
        self.unwatchable_tensors: list[tuple[str, Tensor]] = []  # without plain memory
        self.opaque: list[str] = []  # messages about state that cannot be watched
        self.hides_state = False  # whether a run may change such state
        # Scopes, classes and containers of torch by id; and by id and name, attributes
        # of other objects that only torch reads.
        self.of_torch: dict[int | tuple[int, str], Any] = {}
        self._groups: dict[int, dict[str, Any]] = {}  # of parameters, of optimizers
        self.whole = True
        self._seen: dict[int, Any] = {}
        self._entered: set[types.CodeType] = set()
        self._classes: set[int] = set()
        self._idle: dict[int, frozenset[str]] = {}
        self._named_already: set[tuple[int, str]] = set()

    def _names_of_class(self, kind: type, namespace: Any) -> list[str]:
        """The names in a class's own dict that the step may read.

        Special methods are called without being named. For user classes, those that ran
        and new ones count; for torch classes, only those that ran, because compilers
        replace others.
        """
        names = self._names_for(kind)
        if torch.autograd.Function in mro_of(kind):
            names = names | _OF_BACKWARD
        idle = self._idle.get(id(kind), frozenset()) - self._own_names
        whole = self._ran.is_looked_up(kind)
        return [
            name
            for name in list(namespace)
            if name not in idle
            and (
                whole
                or _is_special(name)
                or name in names
                or self._has_run(namespace[name])
            )
            and not self._ran.is_forgotten(id(kind), name)
        ]

    def _idle_in(self, kind: type, namespace: Any) -> frozenset[str]:
        """Special names of a class that have no effect as long as they do not run."""
        is_users = not _is_of_library(kind, inherited=False)
        return _UNREAD | {
            name
            for name, value in namespace.items()
            if _is_special(name)
            and not self._has_run(value)
            and not (is_users and type(value) is not types.FunctionType)
        }

    def names_of(self, value: Any, namespace: Any) -> list[str]:
        """The names in the dict of an object or a class that the step may read."""
        if type(namespace) is types.MappingProxyType:
            return self._names_of_class(value, namespace)
        if id(value) in self._groups:
            return recorded_settings(value)
        if isinstance_of(value, (nn.Module,)) or self._ran.is_looked_up(value):
            return list(namespace)
        names = self._names_for(type(value))
        return [name for name in list(namespace) if name in names]

    def _names_for(self, kind: type) -> set[str]:
        return self._all_names if _is_of_library(kind) else self._own_names

    def _has_run(self, value: Any) -> bool:
        function = _function_of(value)
        return type(function) is types.FunctionType and (
            function.__code__ in self._ran.codes
        )

    # -- one value -----------------------------------------------------------------

    def _visit(self, label: str, value: Any) -> None:
        if type(value) in PLAIN or value is GONE or id(value) in self._seen:
            return
        if len(self._seen) > _MOST_OBJECTS:
            self.whole = False
            return
        self._seen[id(value)] = value
        for kinds, visit in _VISITORS:
            if isinstance_of(value, kinds):
                visit(self, label, value)
                return
        self._visit_object(label, value)

    def _visit_tensor(self, label: str, tensor: Tensor) -> None:
        if has_plain_memory(tensor):
            self.tensors[id(tensor)] = label, tensor
        else:
            self.unwatchable_tensors.append((label, tensor))
        for name in TENSOR_HOOKS:
            if hooks := getattr(tensor, name, None):
                self._follows_unrun = True
                self._visit(f"{label}.{name}", hooks)
        self._visit_attributes(label, tensor)

    def _visit_nothing(self, label: str, value: Any) -> None:
        """The value is constant, or its changes have no effect."""

    def _visit_method(self, label: str, value: types.MethodType) -> None:
        self._visit(label, value.__func__)
        self._visit(_short(label, "self"), value.__self__)

    def _visit_partial(self, label: str, value: functools.partial[Any]) -> None:
        for name in ("func", "args", "keywords"):
            member = functools.partial.__dict__[name]
            self.watches.add_slot(f"{label}.{name}", member, value)
            self._visit(label, in_slot(member, value))

    def _visit_bound(self, label: str, value: Any) -> None:
        """A bound method of a C object, such as `settings.get`."""
        if not isinstance(value.__self__, types.ModuleType):
            self._visit(_short(label, "self"), value.__self__)

    def _visit_descriptor(self, label: str, value: Any) -> None:
        self._visit(label, _function_of(value))

    def _visit_array(self, label: str, value: Any) -> None:
        self.arrays.append((label, value))
        if isinstance(value, numpy.ndarray) and value.dtype.hasobject:
            self._visit(label, value.ravel().tolist())
        self._visit_object(label, value)

    def _visit_getter(self, label: str, value: Any) -> None:
        """`operator.attrgetter` and similar objects, which contain attribute names."""
        parts = [value]
        while parts:
            part = parts.pop()
            if isinstance(part, str):
                self._own_names.update(part.split("."))
                self._all_names.update(part.split("."))
            elif isinstance(part, (*GETTERS, tuple)):
                parts += gc.get_referents(part)

    def _visit_proxy(self, label: str, value: types.MappingProxyType[Any, Any]) -> None:
        for part in gc.get_referents(value):
            self._visit(label, part)

    def _visit_cache(self, label: str, value: Any) -> None:
        """The entries of `functools.lru_cache`, which are returned without code."""
        self._visit(label, value.__wrapped__)
        namespace = dict_of(value)
        for part in gc.get_referents(value):
            if type(part) is dict and part is not namespace:
                self.caches.append((label, part))
                for entry in list(part.values()):
                    within = type(entry).__name__ == "_lru_list_elem"
                    for each in gc.get_referents(entry) if within else [entry]:
                        self._visit(label, each)

    def _visit_context(self, label: str, value: contextvars.ContextVar[Any]) -> None:
        self.watches.add(CONTEXT, label, value, GONE)
        self._visit(label, value.get(GONE))

    def _visit_local(self, label: str, value: threading.local) -> None:
        self.watches.add(LOCAL, label, value)
        for name, part in list(vars(value).items()):
            self._visit(f"{label}.{name}", part)
        self._visit_class(label, type(value))

    def _visit_reference(self, label: str, value: weakref.ref[Any]) -> None:
        """A weak reference: its target is watched without a strong reference."""
        self.watches.add(REFERENCE, label, value)
        target = weakref.ref.__call__(value)
        if target is None or id(target) in self._seen:
            return
        namespace = dict_of(target)
        if namespace is None or isinstance_of(target, (nn.Module, Tensor)):
            kind = type(target).__name__
            self.opaque.append(f"{label} is a weak reference to a {kind}")
            return
        self._visit_class(label, type(target))
        self._visit_names(label, target, namespace)
        for each in mro_of(type(target)):  # a new attribute could hide these
            for name in self._names_for(type(target)) & dict_of_class(each).keys():
                self._name(f"{label}.{name}", namespace, name)

    # -- containers and objects ----------------------------------------------------

    def _visit_parts(self, label: str, value: Any) -> None:
        """A container; all of its parts count."""
        if isinstance_of(value, (dict,)):
            if value is sys.modules:
                return  # `_read` visits the modules that code names
            self.watches.add_container(label, value)
            for key, part in list(dict.items(value)):
                self._visit(f"{label}[{_shown_key(key)}]", part)
                self._visit(f"a key of {label}", key)
            if isinstance_of(value, (collections.defaultdict,)):
                member = collections.defaultdict.__dict__["default_factory"]
                self.watches.add_slot(f"{label}.default_factory", member, value)
                self._visit(label, value.default_factory)
        else:
            if not isinstance_of(value, (tuple, frozenset)):
                self.watches.add_container(label, value)
            for number, part in enumerate(list(items_of(value).read(value))):
                self._visit(f"{label}[{number}]", part)
        if type(value) not in CONTAINERS:
            self._visit_object(label, value)

    def _visit_module(self, label: str, module: nn.Module) -> None:
        if isinstance_of(module, (torch.jit.ScriptModule,)):
            self.opaque.append(f"{label} is a module of TorchScript")
            return
        self.modules.append(module)
        namespace = module.__dict__
        self.watches.add_object(label, module)
        self.watches.add(VALUES, label, namespace)
        for part in ("_parameters", "_buffers", "_modules"):
            self.watches.add_container(label, namespace[part])
            for name, value in namespace[part].items():
                self._visit(f"{label}.{name}", value)
        for name in HOOKS:
            if hooks := namespace.get(name):
                self._follows_unrun |= "backward" in name
                self.watches.add(VALUES, f"{label}.{name}", hooks)
                for hook in list(hooks.values()):
                    self._visit(f"{label}.{name}", hook)
        for name, value in list(namespace.items()):
            if name not in _OF_MODULES:
                self._visit(f"{label}.{name}", value)
        self._visit_class(label, type(module))
        self._visit_slots(label, module, whole=True)

    def _visit_self_updating(self, label: str, value: Any) -> None:
        """Optimizers and similar objects, whose state replays update.

        Their attributes count as those of any object, apart from that state. What only
        torch reads of an optimizer or a scaler may change while a step runs, unlike a
        scheduler, because a step that changes one cannot be replayed.
        """
        may_change = not isinstance_of(value, (torch.optim.lr_scheduler.LRScheduler,))
        self._visit_class(label, type(value))
        self.watches.add_object(label, value)
        namespace = dict_of(value) or {}
        for name in self.names_of(value, namespace):
            if may_change and name not in self._own_names:
                self.of_torch[id(namespace), name] = namespace
                self.of_torch[id(value), name] = value
            self._name(f"{label}.{name}", namespace, name)
            if name not in _UPDATED:
                self._visit(f"{label}.{name}", namespace.get(name))
        if isinstance(value, torch.optim.Optimizer):
            if hasattr(value, "param_groups"):  # else it is not initialized
                self._visit_optimizer(label, value)
        elif isinstance(value, torch.amp.GradScaler):
            self.scalers.append(value)

    def _visit_optimizer(self, label: str, optimizer: torch.optim.Optimizer) -> None:
        self.optimizers.append(optimizer)
        self.watches.add_container(f"{label}.param_groups", optimizer.param_groups)
        for number, group in enumerate(optimizer.param_groups):
            place = f"{label}.param_groups[{number}]"
            self._groups[id(group)] = group
            self.watches.add_names(place, group, group)
            for name in self.names_of(group, group):
                self._name(f"{place}.{name}", group, name)
                self._visit(f"{place}.{name}", group[name])
        for state in list(optimizer.state.values()):
            if isinstance_of(state, (dict,)):
                for name, entry in list(state.items()):
                    if not isinstance_of(entry, (Tensor,)):  # the snapshot watches it
                        self._visit(f"{label}.state[...][{name!r}]", entry)

    def _visit_object(self, label: str, value: Any) -> None:
        kind: Any = type(value)
        if kind.__module__.partition(".")[0] in ("logging", "torchproof"):
            return
        self._visit_class(label, kind)
        if (base := hidden(kind)) is not None:
            self.opaque.append(f"{label} is a {base.__name__}")
            self.hides_state |= not issubclass(base, io.TextIOBase)
        self._visit_attributes(label, value)

    def _visit_attributes(self, label: str, value: Any) -> None:
        self.watches.add_object(label, value)
        if (namespace := dict_of(value)) is not None:
            self._visit_names(label, value, namespace)
        self._visit_slots(label, value, whole=self._ran.is_looked_up(value))

    def _visit_names(self, label: str, value: Any, namespace: Namespace) -> None:
        for name in self.names_of(value, namespace):
            self._name(f"{label}.{name}", namespace, name)
            self._visit(f"{label}.{name}", namespace.get(name))

    def _visit_slots(self, label: str, value: Any, *, whole: bool) -> None:
        names = self._names_for(type(value))
        for name, member in slots_of(type(value)):
            if whole or name in names:
                self.watches.add_slot(f"{label}.{name}", member, value)
                self._visit(f"{label}.{name}", in_slot(member, value))

    # -- classes and Python modules ------------------------------------------------

    def _visit_class(self, label: str, kind: type) -> None:
        """A class and its bases: methods and values by name."""
        for each in (*mro_of(kind), *mro_of(type(kind))):
            fixed = each.__flags__ & _IMMUTABLE_TYPE or not each.__flags__ & HEAP_TYPE
            if not fixed and id(each) not in self._classes:
                self._classes.add(id(each))
                self._visit_own(each)

    def _visit_own(self, kind: type) -> None:
        namespace = dict_of_class(kind)
        self._idle[id(kind)] = self._idle_in(kind, namespace)
        name_of_class = type.__getattribute__(kind, "__name__")
        for name in _OF_TYPES & self._own_names:
            member = type.__dict__[name]
            self.watches.add_slot(f"{name_of_class}.{name}", member, kind)
        self.watches.add_class(name_of_class, kind, namespace)
        is_users = not _is_of_library(kind, inherited=False)
        if not is_users:
            self.of_torch[id(kind)] = kind
        for name in self._names_of_class(kind, namespace):
            value, label = namespace[name], f"{name_of_class}.{name}"
            if type(value) is types.MemberDescriptorType:
                continue  # a slot
            self.watches.add_class_entry(label, kind, namespace, name)
            function = _function_of(value)
            if type(function) is types.FunctionType:
                self._follows_unrun |= name in _OF_BACKWARD and is_users
                self._visit(label, function)
            elif is_users and (name in self._own_names or not _is_special(name)):
                self._visit(label, value)

    def _visit_python_module(self, label: str, module: types.ModuleType) -> None:
        """A module of the user or a library; `_follow` visits those of torch."""
        if _owner_of_module(module) in _OWN:
            self.watches.add_object(label, module)
            namespace = object.__getattribute__(module, "__dict__")
            for name in self.names_of(module, namespace):
                self._name(f"{label}.{name}", namespace, name)
                self._visit(f"{label}.{name}", namespace.get(name))

    # -- code ----------------------------------------------------------------------

    def _visit_function(self, label: str, function: types.FunctionType) -> None:
        code, owner = function.__code__, owner_of(function.__code__)
        may_run = self._follows_unrun and (owner in _OWN or label == "step")
        is_entered = code in self._ran.codes or (may_run and not self._only_run)
        if owner == "user":
            self._visit_attributes(label, function)
        is_read = owner in _OWN and _OF_FUNCTIONS & self._all_names
        if is_entered or is_read:
            for name in _OF_FUNCTIONS:
                self.watches.add(FUNCTION, label, function, name)
        if not is_entered:
            return
        self._entered.add(code)
        for name, cell in zip(
            code.co_freevars, function.__closure__ or (), strict=True
        ):
            self.watches.add(CELL, name, cell)
            if (value := contents(cell)) is cell:
                continue
            if label == "step" and _is_compiled_step(owner, value):
                self._visit(label, value)
            else:
                self._visit_as(owner, name, value)
        for value in (function.__defaults__, function.__kwdefaults__):
            self._visit_as(owner, f"{label}'s defaults", value)
        self._read(code, function.__globals__)

    def _add_names(self, code: types.CodeType) -> None:
        names = reads_of(code).attributes | reads_of(code).strings
        self._all_names |= names
        if owner_of(code) in _OWN:
            self._own_names |= names

    def _read(self, code: types.CodeType, scope: Namespace) -> None:
        """Visits the attributes and globals that the code names."""
        reads = reads_of(code)
        owner = owner_of(code)
        has_run = code in self._ran.codes
        self._add_names(code)
        for name in sorted(reads.globals):
            value = scope.get(name, GONE)
            if owner == "library" and not has_run:
                if isinstance(value, types.FunctionType):
                    self._visit(name, value)
                continue
            if owner not in _OWN:
                self.of_torch[id(scope)] = scope
            self._name(name, scope, name)
            if value is not GONE:
                self._visit_as(owner, name, value)
            elif owner in _OWN:
                self._name(name, vars(builtins), name)
                self._visit(name, vars(builtins).get(name, GONE))
        for chain in sorted(reads.chains, key=len):
            self._follow(scope, chain)
        for name in sorted(_modules_of(reads, scope) & sys.modules.keys()):
            self._name(f"sys.modules[{name!r}]", sys.modules, name)
            self._visit(name, sys.modules[name])
        if owner in _OWN and "globals" in reads.globals and has_run:
            self._visit("globals()", scope)

    def _visit_as(self, owner: str, label: str, value: Any) -> None:
        """Visits a value; for code of torch, without following its contents."""
        if owner in _OWN or isinstance_of(
            value, (types.FunctionType, types.MethodType)
        ):
            self._visit(label, value)
        elif type(value) in (dict, collections.OrderedDict, list, set):
            forgotten = self._ran.is_forgotten(id(value), None)
            if len(value) <= _SMALL and id(value) not in self._seen and not forgotten:
                self._seen[id(value)] = value
                self.of_torch[id(value)] = value
                self.watches.add_container(label, value)

    def _follow(self, scope: Namespace, chain: tuple[str, ...]) -> None:
        """Follows a chain such as `torch.nn.functional.relu` from module to module."""
        label = chain[0]
        value = scope.get(label, GONE)
        if not isinstance(value, types.ModuleType) or len(chain) < 2:
            return
        for name in chain[1:]:
            if not isinstance(value, types.ModuleType):
                return
            label = f"{label}.{name}"
            namespace = object.__getattribute__(value, "__dict__")
            if _owner_of_module(value) not in _OWN:
                self.of_torch[id(namespace)] = namespace
            self._name(label, namespace, name)
            value = namespace.get(name, GONE)
        self._visit(label, value)

    def _visit_what_ran(self) -> None:
        """Visits executed code that is not reachable from the step."""
        ran = self._ran
        within: set[types.CodeType] = set()
        for code, scope in ran.codes.items():
            self._read(code, scope)
            within.update(c for c in code.co_consts if isinstance(c, types.CodeType))
        unreached = [
            code
            for code in ran.codes
            if owner_of(code) in _OWN and code not in self._entered | within
        ]
        for function in ran.functions_of(unreached):
            self._visit(function.__qualname__, function)
        for value in ran.arguments():
            if id(value) not in self._seen and not self._only_run:
                self._visit_unreached(type(value).__name__, value)

    def _visit_unreached(self, label: str, value: Any) -> None:
        """An argument of executed code that is not reachable from the step."""
        namespace = dict_of(value)
        if isinstance_of(value, (nn.Module, *_SELF_UPDATING)):
            self._visit(label, value)
        elif namespace is not None and not isinstance_of(value, CONTAINERS):
            self._visit_class(label, type(value))
            self._visit_names(label, value, namespace)

    def _name(self, label: str, namespace: Namespace, name: str) -> None:
        is_new = (id(namespace), name) not in self._named_already
        if is_new and not self._ran.is_forgotten(id(namespace), name):
            self._named_already.add((id(namespace), name))
            self.watches.add_entry(label, namespace, name)


_VISITORS: tuple[tuple[tuple[Any, ...], Callable[[Any, str, Any], None]], ...] = (
    ((Tensor,), ReachableState._visit_tensor),
    ((nn.Module,), ReachableState._visit_module),
    (_SELF_UPDATING, ReachableState._visit_self_updating),
    ((types.MethodType,), ReachableState._visit_method),
    ((types.FunctionType,), ReachableState._visit_function),
    ((functools.partial,), ReachableState._visit_partial),
    (CONTAINERS, ReachableState._visit_parts),
    ((*BYTES, *NUMBERS_IN_C, ctypes._SimpleCData), ReachableState._visit_array),
    ((types.ModuleType,), ReachableState._visit_python_module),
    ((type,), ReachableState._visit_class),
    ((property, staticmethod, classmethod), ReachableState._visit_descriptor),
    ((types.BuiltinFunctionType, types.MethodWrapperType), ReachableState._visit_bound),
    (GETTERS, ReachableState._visit_getter),
    ((types.MappingProxyType,), ReachableState._visit_proxy),
    (CACHED, ReachableState._visit_cache),
    ((contextvars.ContextVar,), ReachableState._visit_context),
    ((threading.local,), ReachableState._visit_local),
    ((weakref.ref,), ReachableState._visit_reference),
    ((types.CodeType, types.CellType), ReachableState._visit_nothing),
)


def has_plain_memory(tensor: Tensor) -> bool:
    """Whether a tensor is one strided block: not sparse, lazy or a wrapper."""
    if type(tensor) in (Tensor, nn.Parameter):
        return tensor.layout is torch.strided
    return (
        tensor.layout is torch.strided
        and not hasattr(tensor, "__tensor_flatten__")
        and not nn.parameter.is_lazy(tensor)
    )


def _is_of_library(kind: Any, *, inherited: bool = True) -> bool:
    """Whether a class, or one it inherits from, is of torch or the standard library."""
    return _are_of_library(mro_of(kind) if inherited else (kind,))


@functools.lru_cache(maxsize=4096)
def _are_of_library(kinds: tuple[type, ...]) -> bool:
    for each in kinds:
        top = str(each.__module__).partition(".")[0]
        if top in ("builtins", "abc", "typing"):
            continue
        if top in ("torch", "torchproof") or top in sys.stdlib_module_names:
            return True
    return False


def _owner_of_module(module: types.ModuleType) -> str:
    namespace = object.__getattribute__(module, "__dict__")
    name = str(namespace.get("__name__"))
    file = namespace.get("__file__")
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names and name != "__main__":
        return "standard"
    if top == "torch":  # torch.ops and torch.classes name no file that exists
        return "torch"
    return whose(file) if isinstance(file, str) else "user"


def _function_of(value: Any) -> Any:
    """The function that a descriptor calls."""
    if isinstance_of(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance_of(value, (functools.partialmethod, functools.cached_property)):
        return value.func
    return value.fget if isinstance_of(value, (property,)) else value


def _modules_of(reads: Reads, scope: Namespace) -> set[str]:
    """The names of modules that code may import or look up in `sys.modules`."""
    names = {*reads.imports}
    if _BY_NAME & (reads.attributes | reads.globals):
        names |= reads.strings
        names.add(str(scope.get("__name__")))
    package = str(scope.get("__package__") or "").split(".")
    within = [".".join(package[:count]) for count in range(1, len(package) + 1)]
    relative = {f"{home}.{name.lstrip('.')}" for home in within for name in names}
    names |= {name.rstrip(".") for name in relative}
    if reads.imports:  # `from . import name`
        names |= {f"{home}.{name}" for home in names for name in reads.attributes}
    return names


_BY_NAME = frozenset({"modules", "import_module", "__import__"})


def _is_compiled_step(owner: str, value: Any) -> bool:
    """Whether a variable of a wrapper of torch.compile is what it compiles."""
    if owner in _OWN or not callable(value):
        return False
    if isinstance_of(value, (types.FunctionType,)):
        # `__module__` is that of the wrapped object.
        scope = value.__globals__.get("__name__")
        is_wrapper = scope == "torch._dynamo.external_utils"
        return is_wrapper or owner_of(value.__code__) in _OWN
    if isinstance_of(value, (functools.partial, types.MethodType)):
        return True
    return not _is_of_library(type(value), inherited=False)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _shown_key(key: Any) -> str:
    return repr(key) if type(key) in ATOMS else type(key).__name__


def _short(label: str, name: str) -> str:
    return name if label == "step" else f"{label}.{name}"
