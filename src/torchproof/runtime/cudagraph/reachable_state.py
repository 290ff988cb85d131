"""Finds all state that a step can reach besides its arguments.

Takes the step and the code that ran in an eager call (`Execution`). Returns the places
that this code could read: modules, dicts, lists and sets; attributes of other objects,
of classes and of Python modules, and globals, if the code names them; variables of
enclosing functions; tensors and optimizers.

Functions that ran are followed, and before anything has run, all functions of the user
and of libraries that code names. Torch and the standard library are not: their classes
and globals are theirs, and change while torch compiles. The names that their code uses
count for objects of their own classes only; otherwise they would match any attribute of
the same name.
"""

from __future__ import annotations

import builtins
import collections
import functools
import gc
import io
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

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
    CACHED,
    CONTAINERS,
    PLAIN,
    REFERRING,
    hidden,
    words,
)
from torchproof.runtime.cudagraph.optimizers import recorded_settings
from torchproof.runtime.cudagraph.watched_places import (
    BASES,
    CELL,
    ENTRY,
    FUNCTION,
    GONE,
    HEAP_TYPE,
    MODULE_HOOKS,
    NAMES,
    NAMESPACE,
    SLOT,
    TYPE,
    VALUES,
    Watches,
    contents,
    dict_of,
    dict_of_class,
    hooks_of,
    isinstance_of,
    item_label,
    mro_of,
    places_of,
)

MOST_OBJECTS = 100_000  # a model of 48 layers has 19,000
_SELF_UPDATING = (  # their own state changes at every step
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
)
_UPDATED = frozenset({"state", "param_groups"})
# `GradScaler.step` fills it and `update` replaces it: an undo restores it.
OF_SCALERS = "_per_optimizer_states"
_OWN = ("user", "library")
_ENTRIES = frozenset({"forward", "__call__"})
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
_WHOLE = (nn.Module, functools.partial, collections.defaultdict)  # every attribute
_IMMUTABLE_TYPE = 1 << 8
# Hooks of all modules and optimizers, which torch keeps in dicts of its own.
_GLOBAL_HOOKS = [
    (name, hooks)
    for kind in (nn.Module, torch.optim.Optimizer)
    for name, hooks in vars(sys.modules[kind.__module__]).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
]


class ReachableState:
    """The reachable places, each with a label for messages.

    An attribute counts if code names it, and that code is found by the same walk. So
    the walk is repeated from the start until it meets no code with new names.
    """

    def __init__(self, step: Callable[..., Any], ran: Execution | None = None) -> None:
        self._ran = Execution() if ran is None else ran
        self._follows_unrun = not self._ran.codes
        # Attribute names in code of the user and of libraries; and these with those in
        # code of torch and the standard library.
        self._own_names: set[str] = set(_ENTRIES)
        self._all_names: set[str] = set(_ENTRIES)
        for code in self._ran.codes:
            self._add_names(code)
        size = -1
        while size < (new_size := len(self._own_names) + len(self._all_names)):
            size = new_size  # visited code adds names
            self._clear()
            self._visit("step", step)
            for label, hooks in _GLOBAL_HOOKS:
                self._visit(label, hooks)
            self._visit_all()
            self._visit_what_ran()
        del self._seen, self._todo, self._entered, self._entries

    def _clear(self) -> None:
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self.watches = Watches()
        self.labelled_tensors: list[tuple[str, Tensor]] = []
        self.unwatchable_tensors: list[str] = []  # messages about their memory
        self.opaque: list[str] = []  # messages about state that cannot be watched
        self.hides_state = False  # whether a run may change such state
        self.whole = True
        self._groups: dict[int, dict[str, Any]] = {}  # of parameters, of optimizers
        self._seen: dict[int, Any] = {}
        self._todo: collections.deque[tuple[str, Any]] = collections.deque()
        self._entered: set[types.CodeType] = set()
        self._classes: set[int] = set()
        self._entries: set[tuple[int, str]] = set()

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for _, tensor in self.labelled_tensors]

    @property
    def parameters(self) -> list[tuple[str, Tensor]]:
        """The leaf tensors that may get a gradient."""
        every = self.labelled_tensors
        return [
            each for each in every if each[1].is_leaf and each[1].is_floating_point()
        ]

    @property
    def buffers(self) -> list[Tensor]:
        every = (b for module in self.modules for b in module.buffers(recurse=False))
        return list(filter(has_plain_memory, every))

    @property
    def lacks_scale(self) -> bool:
        """Whether a GradScaler has not created its scale yet."""
        return any(each.is_enabled() and each._scale is None for each in self.scalers)

    def owners(self) -> Iterator[Any]:
        """The objects that the watched places belong to."""
        return (watch.owner for watch in self.watches.every)

    # -- which names count ---------------------------------------------------------

    def names_of(self, value: Any, namespace: Namespace) -> list[str]:
        """The names in the dict of an object or a class that the step may read."""
        if isinstance_of(value, (type,)):
            return self._names_of_class(value, namespace)
        if id(value) in self._groups:
            return recorded_settings(value)
        if self._is_whole(value):
            return list(namespace)
        names = self._names_for(type(value))
        is_scaler = isinstance_of(value, (torch.amp.GradScaler,))
        names = names - {OF_SCALERS} if is_scaler else names
        return [name for name in list(namespace) if name in names]

    def _names_of_class(self, kind: type, namespace: Namespace) -> list[str]:
        """Special methods are called without being named."""
        if self._ran.is_looked_up(kind):
            return list(namespace)
        names = self._names_for(kind)
        return [
            name
            for name, value in list(namespace.items())
            if name in names or self._has_run(value) or self._may_be_called(name)
        ]

    def _may_be_called(self, name: str) -> bool:
        """Whether a step calls or reads an entry of a class without naming it."""
        is_called = _is_special(name) and name not in _UNREAD
        return is_called and not self._follows_unrun

    def _is_whole(self, value: Any) -> bool:
        return isinstance_of(value, _WHOLE) or self._ran.is_looked_up(value)

    def _names_for(self, kind: type) -> set[str]:
        of_library = _is_of_library(kind, inherited=True)
        return self._all_names if of_library else self._own_names

    def _has_run(self, value: Any) -> bool:
        function = _function_of(value)
        return type(function) is types.FunctionType and (
            function.__code__ in self._ran.codes
        )

    # -- one value -----------------------------------------------------------------

    def _visit(self, label: str, value: Any) -> None:
        """Notes a value once, to look into it later."""
        # Of `sys.modules`, `_read` visits the modules that code names.
        is_left = type(value) in PLAIN or value is GONE or value is sys.modules
        if not is_left and id(value) not in self._seen:
            self._seen[id(value)] = value
            self._todo.append((label, value))

    def _visit_all(self) -> None:
        while self._todo:
            if len(self._seen) > MOST_OBJECTS:
                self.whole = False
                return
            label, value = self._todo.popleft()
            kind: Any = type(value)
            _visitor_of(kind)(self, label, value)

    def _visit_object(self, label: str, value: Any) -> None:
        kind: Any = type(value)
        if kind.__module__.partition(".")[0] in ("logging", "torchproof"):
            return
        if issubclass(kind, REFERRING):
            for part in referents(value):
                is_self = label == "step" and type(part) is not types.FunctionType
                self._visit("self" if is_self else label, part)
            if kind in REFERRING:
                return
        self._visit_class(label, kind)
        if (base := hidden(kind)) is not None:
            self.opaque.append(f"{label} is a {base.__name__}")
            self.hides_state |= not issubclass(base, io.TextIOBase)
        self._visit_places(label, value)

    def _visit_places(self, label: str, value: Any) -> None:
        """Watches the places in an object, and visits what is in them."""
        names = None if self._is_whole(value) else self._names_for(type(value))
        for watch in places_of(label, value):
            kind, arguments = watch.kind, watch.arguments
            if kind is SLOT and names is not None:
                if arguments[0].__name__ not in names:
                    continue
            elif kind is NAMES:
                self._visit_names(label, value, arguments[0])
            self.watches.every.append(watch)
            if kind is VALUES:
                for key, part in list(dict.items(value)):
                    self._visit(item_label(label, key), part)
                    self._visit(f"a key of {label}", key)
            elif kind.name == "items" and not isinstance_of(value, (dict,)):
                for number, part in enumerate(list(kind.read(value))):
                    self._visit(f"{label}[{number}]", part)
            elif not kind.many and kind not in (FUNCTION, TYPE, NAMESPACE):
                self._visit(watch.label, kind.read(*arguments))

    def _visit_names(self, label: str, value: Any, namespace: Namespace) -> None:
        """Watches the entries of a namespace that count, and visits them."""
        if whole := self._is_whole(value):
            self.watches.add(VALUES, label, value, namespace)
        is_module = isinstance_of(value, (nn.Module,))
        is_updating = isinstance_of(value, _SELF_UPDATING)
        for name in self.names_of(value, namespace):
            part = namespace.get(name, GONE)
            if not whole:
                self._watch_entry(f"{label}.{name}", namespace, name)
            is_hook = is_module and name in MODULE_HOOKS
            if is_hook and (not part or isinstance_of(part, (set,))):
                continue
            if not (is_updating and name in _UPDATED):
                self._visit(f"{label}.{name}", part)

    def _watch_entry(
        self, label: str, namespace: Namespace, name: str, owner: Any = None
    ) -> None:
        """Watches an entry of a dict once; `owner` is its class or module."""
        if (id(namespace), name) not in self._entries:
            self._entries.add((id(namespace), name))
            owner = namespace if owner is None else owner
            self.watches.add(ENTRY, label, owner, namespace, name, GONE)

    def _watch_container(self, label: str, container: Any) -> None:
        self.watches.every += places_of(label, container)

    # -- special values ------------------------------------------------------------

    def _visit_nothing(self, label: str, value: Any) -> None:
        """The value is constant, or code names what counts of it."""

    def _visit_tensor(self, label: str, tensor: Tensor) -> None:
        if has_plain_memory(tensor):
            self.labelled_tensors.append((label, tensor))
        else:
            kind = type(tensor).__name__
            why = f"{label} is a {kind} of layout {tensor.layout}"
            self.unwatchable_tensors.append(why)
        for name, hooks in hooks_of(tensor):
            self._visit(f"{label}.{name}", hooks)
        self._visit_places(label, tensor)

    def _visit_module(self, label: str, module: nn.Module) -> None:
        if isinstance_of(module, (torch.jit.ScriptModule,)):
            self.opaque.append(f"{label} is a module of TorchScript")
            return
        self.modules.append(module)
        self._visit_object(label, module)

    def _visit_cache(self, label: str, value: Any) -> None:
        """The entries of `functools.lru_cache`, which are returned without code.

        New ones may be added. No undo writes to the dict of a cache, which is its own.
        """
        for part in referents(value):
            if type(part) is not dict:
                self._visit(label, part)  # its function; answers, if it has a limit
                continue
            for key, answer in list(part.items()):
                self.watches.add(ENTRY, label, value, part, key, GONE)
                self._visit(label, answer)

    def _visit_reference(self, label: str, value: weakref.ref[Any]) -> None:
        """A weak reference: to watch its target would keep that alive."""
        target = weakref.ref.__call__(value)
        if isinstance_of(target, (type,)):
            self._visit(label, target)
        elif target is not None:
            name = type(target).__name__
            self.opaque.append(f"{label} is a weak reference to a {name}")

    def _visit_self_updating(self, label: str, value: Any) -> None:
        """Optimizers and similar objects, whose state replays update.

        Their attributes count as those of any object, apart from that state.
        """
        self._visit_object(label, value)
        if isinstance(value, torch.optim.Optimizer):
            if hasattr(value, "param_groups"):  # else it is not initialized
                self._visit_optimizer(label, value)
        elif isinstance(value, torch.amp.GradScaler):
            self.scalers.append(value)

    def _visit_optimizer(self, label: str, optimizer: torch.optim.Optimizer) -> None:
        self.optimizers.append(optimizer)
        self._watch_container(f"{label}.param_groups", optimizer.param_groups)
        for number, group in enumerate(optimizer.param_groups):
            self._groups[id(group)] = group
            place = f"{label}.param_groups[{number}]"
            self.watches.add(NAMES, place, group, group)
            self._visit_names(place, group, group)
        self._watch_container(f"{label}.state", optimizer.state)
        for state in list(optimizer.state.values()):
            if isinstance_of(state, (dict,)):
                self._watch_container(f"{label}.state[...]", state)
                for name, entry in list(state.items()):
                    if not isinstance_of(entry, (Tensor,)):  # the snapshot watches it
                        self._visit(f"{label}.state[...][{name!r}]", entry)

    # -- classes and Python modules ------------------------------------------------

    def _visit_class(self, label: str, kind: type) -> None:
        """A class and its bases: methods and values by name."""
        for each in (*mro_of(kind), *mro_of(type(kind))):
            fixed = each.__flags__ & _IMMUTABLE_TYPE or not each.__flags__ & HEAP_TYPE
            if not fixed and id(each) not in self._classes:
                self._classes.add(id(each))
                self._visit_own(each)

    def _visit_own(self, kind: type) -> None:
        """A class without its bases; those of torch are left as they are."""
        if _is_of_library(kind):
            return
        namespace = dict_of_class(kind)
        label = type.__getattribute__(kind, "__name__")
        for name in _OF_TYPES & self._own_names:
            member = type.__dict__[name]
            self.watches.add(SLOT, f"{label}.{name}", kind, member, kind)
        self.watches.add(BASES, label, kind, kind)
        self.watches.add(NAMES, label, kind, namespace)
        for name in self._names_of_class(kind, namespace):
            value = namespace[name]
            if type(value) is types.MemberDescriptorType:
                continue  # a slot
            self._watch_entry(f"{label}.{name}", namespace, name, kind)
            function = _function_of(value)
            if type(function) is types.FunctionType:
                self._visit(f"{label}.{name}", function)
            elif name in self._own_names or not _is_special(name):
                self._visit(f"{label}.{name}", value)

    def _visit_python_module(self, label: str, module: types.ModuleType) -> None:
        """A module of the user or a library; `_follow` visits those of torch."""
        if _owner_of_module(module) in _OWN:
            self._visit_places(label, module)

    # -- code ----------------------------------------------------------------------

    def _visit_function(self, label: str, function: types.FunctionType) -> None:
        code, owner = function.__code__, owner_of(function.__code__)
        may_run = self._follows_unrun and (owner in _OWN or label == "step")
        is_entered = code in self._ran.codes or may_run
        for watch in places_of(label, function) if owner in _OWN else ():
            if watch.kind is FUNCTION or owner == "user":
                self.watches.every.append(watch)
        if owner == "user":
            self._visit_names(label, function, function.__dict__)
        if not is_entered:
            return
        self._entered.add(code)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            self.watches.add(CELL, name, cell, cell)
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
        """Visits the attributes and globals that the code names, but not torch's."""
        self._add_names(code)
        if (owner := owner_of(code)) not in _OWN:
            return
        reads = reads_of(code)
        has_run = code in self._ran.codes
        for name in sorted(reads.globals):
            value = scope.get(name, GONE)
            if owner == "library" and not has_run:
                if isinstance(value, types.FunctionType):
                    self._visit(name, value)
                continue
            self._watch_entry(name, scope, name)
            if value is not GONE:
                self._visit(name, value)
            else:
                self._watch_entry(name, vars(builtins), name)
                self._visit(name, vars(builtins).get(name, GONE))
        for chain in sorted(reads.chains, key=len):
            self._follow(scope, chain)
        for name in sorted(_modules_of(reads, scope) & sys.modules.keys()):
            self._watch_entry(f"sys.modules[{name!r}]", sys.modules, name)
            self._visit(name, sys.modules[name])
        if "globals" in reads.globals and has_run:
            self._visit("globals()", scope)

    def _visit_as(self, owner: str, label: str, value: Any) -> None:
        """Visits a value; of what torch's functions hold, only other functions."""
        is_function = isinstance_of(value, (types.FunctionType, types.MethodType))
        if owner in _OWN or is_function:
            self._visit(label, value)

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
            module, value = value, namespace.get(name, GONE)
            if _owner_of_module(module) in _OWN:
                self._watch_entry(label, namespace, name)
            elif not (value is GONE or isinstance(value, types.ModuleType)):
                # Not what the compiler imports. No undo saves a module of torch.
                self._watch_entry(label, namespace, name, module)
        self._visit(label, value)

    def _visit_what_ran(self) -> None:
        """Visits executed code that is not reachable from the step."""
        ran = self._ran
        within: set[types.CodeType] = set()
        for code, scope in ran.codes.items():
            self._read(code, scope)
            within.update(c for c in code.co_consts if isinstance(c, types.CodeType))
        self._visit_all()
        unreached = [
            code
            for code in ran.codes
            if owner_of(code) in _OWN and code not in self._entered | within
        ]
        for function in ran.functions_of(unreached):
            self._visit(function.__qualname__, function)
        self._visit_all()
        opaque = [*self.opaque]  # arguments may hold more than the step reads
        for value in ran.arguments():
            if id(value) not in self._seen:
                self._visit_unreached(type(value).__name__, value)
        self._visit_all()
        self.opaque = opaque

    def _visit_unreached(self, label: str, value: Any) -> None:
        """An argument of executed code that is not reachable from the step."""
        namespace = dict_of(value)
        if isinstance_of(value, (nn.Module, *_SELF_UPDATING)):
            self._visit(label, value)
        elif namespace is not None and not isinstance_of(value, CONTAINERS):
            self._visit_class(label, type(value))
            self._visit_names(label, value, namespace)


_VISITORS: tuple[tuple[Any, Callable[[Any, str, Any], None]], ...] = (
    (Tensor, ReachableState._visit_tensor),
    (nn.Module, ReachableState._visit_module),
    (_SELF_UPDATING, ReachableState._visit_self_updating),
    (types.FunctionType, ReachableState._visit_function),
    (types.ModuleType, ReachableState._visit_python_module),
    (type, ReachableState._visit_class),
    (CACHED, ReachableState._visit_cache),
    (weakref.ref, ReachableState._visit_reference),
    (types.CodeType, ReachableState._visit_nothing),
    (object, ReachableState._visit_object),
)


@functools.lru_cache(maxsize=4096)
def _visitor_of(kind: type) -> Callable[[ReachableState, str, Any], None]:
    return next(visit for kinds, visit in _VISITORS if issubclass(kind, kinds))


def referents(value: Any) -> list[Any]:
    """What a constant object of C, or a cache, refers to beside its attributes."""
    if not isinstance_of(value, (*REFERRING, CACHED)):
        return []
    own = dict_of(value), type(value)
    return [each for each in gc.get_referents(value) if all(each is not o for o in own)]


def has_plain_memory(tensor: Tensor) -> bool:
    """Whether a tensor is one strided block: not sparse, lazy or a wrapper."""
    if type(tensor) in (Tensor, nn.Parameter):
        return tensor.layout is torch.strided
    return (
        tensor.layout is torch.strided
        and not hasattr(tensor, "__tensor_flatten__")
        and not nn.parameter.is_lazy(tensor)
    )


# -- whose code and classes ------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _is_of_library(kind: type, *, inherited: bool = False) -> bool:
    """Whether a class, or one it inherits from, is of torch or the standard library."""
    for each in mro_of(kind) if inherited else (kind,):
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
    kind: Any = type(value)
    return not _is_of_library(kind)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
