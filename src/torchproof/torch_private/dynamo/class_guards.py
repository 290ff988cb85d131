"""Guards on classes: compiled code is left when a method it was traced through changes.

Dynamo guards the type of an object and the attributes of the instance. It takes the
methods of a class for granted, and so do `module.compile()` and `torch.compile`.
`record_inlined()` collects the functions that Dynamo inlines, and `add_guards()` adds to the
guards of what was compiled from them:
- for each class, its order of bases, that it still has these functions where they were
  found, that no class before it has one of the same name, and the code of each;
- that the hooks on all modules are those that were there;
- that forward-mode differentiation is off, for which AOTAutograd has no code.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_modules

PROBES: dict[str, tuple[str, ...]] = {
    "guards on classes": (
        "torch._dynamo.symbolic_convert:InliningInstructionTranslator.inline_call",
        "torch._dynamo.guards:GuardManagerType.GUARD_MANAGER",
        "torch._C._dynamo.guards:RootGuardManager.globals_dict_manager",
        "torch._C._dynamo.guards:GuardManager.dict_getitem_manager",
        "torch._C._dynamo.guards:GuardManager.getattr_manager",
        "torch._C._dynamo.guards:GuardManager.type_dict_manager",
        "torch._C._dynamo.guards:GuardManager.type_mro_manager",
        "torch._C._dynamo.guards:GuardManager.add_id_match_guard",
        "torch._C._dynamo.guards:GuardManager.add_dict_contains_guard",
        "torch._C._dynamo.guards:GuardManager.add_dict_version_guard",
        "torch._C._dynamo.guards:GuardManager.add_dict_length_check_guard",
    ),
    "hooks on all modules": (
        "torch.nn.modules.module:_global_forward_hooks",
        "torch.nn.modules.module:_global_forward_pre_hooks",
        "torch.nn.modules.module:_global_backward_hooks",
        "torch.nn.modules.module:_global_backward_pre_hooks",
    ),
    "the level of forward-mode differentiation": (
        "torch.autograd.forward_ad:_current_level",
    ),
}

_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
# Python calls these of an object, whether or not it had them when it was traced.
_IMPLICIT = ("__getattribute__", "__getattr__")
_IMPLICIT_OF_MODULES = (*_IMPLICIT, "__call__", "_wrapped_call_impl", "_call_impl")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class whose attributes can be set


class InlinedFunctions:
    """Functions that were traced, and the classes of what they are methods of."""

    def __init__(self) -> None:
        self.functions: set[FunctionType] = set()
        self.kinds: dict[type, None] = {}

    def note(self, function: Any, arguments: Iterable[Any]) -> None:
        """Takes Dynamo's own record of a function, and of the arguments of its call."""
        plain = getattr(function, "fn", None)
        if isinstance(plain, FunctionType):
            self.functions.add(plain)
        for variable in (getattr(function, "obj", None), *arguments):
            value = _value_of(variable)
            kind = value if isinstance(value, type) else type(value)
            if kind.__flags__ & _HEAP_TYPE:
                self.kinds[kind] = None


def _value_of(variable: Any) -> Any:
    """What a variable of Dynamo stands for, without making Dynamo look at it."""
    fields = getattr(variable, "__dict__", {})
    if "_cache" in fields:  # one that Dynamo has not looked at yet
        return getattr(fields["_cache"], "value", None)
    return fields.get("value")


_inlined: contextvars.ContextVar[InlinedFunctions | None] = contextvars.ContextVar(
    "torchproof_inlined", default=None
)


@contextlib.contextmanager
def record_inlined() -> Iterator[InlinedFunctions]:
    """What Dynamo inlines inside of it, in this thread."""
    _install()
    inlined = InlinedFunctions()
    token = _inlined.set(inlined)
    try:
        yield inlined
    finally:
        _inlined.reset(token)


@functools.cache
def _install() -> None:
    """Stays in place, for every thread; it acts only inside of `record_inlined`."""
    home = importlib.import_module("torch._dynamo.symbolic_convert")
    original = home.InliningInstructionTranslator.__dict__["inline_call"].__func__

    @functools.wraps(original)
    def inline(cls: Any, parent: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        inlined = _inlined.get()
        if inlined is not None:
            # Of all arguments, the first is the object of `Base.method(self, ...)`.
            inlined.note(func, args[0][:1] if args else ())
        return original(cls, parent, func, *args, **kwargs)

    home.InliningInstructionTranslator.inline_call = classmethod(inline)


def differentiates_forward() -> bool:
    """Whether the caller is inside of `forward_ad.dual_level()`."""
    level: int = forward_ad._current_level
    return level >= 0


def add_guards(guard_manager: Any, inlined: InlinedFunctions) -> None:
    """Adds to the guards of compiled code what they leave out about classes."""
    objects: dict[str, Any] = {}
    guards = _Guards(guard_manager.root, objects)
    guards.same_level()
    if any(issubclass(kind, nn.Module) for kind in inlined.kinds):
        for name in _GLOBAL_HOOKS:
            guards.same_hooks(name)
    for kind in inlined.kinds:
        guards.same_bases(kind)
        for name in _names(kind, inlined.functions):
            guards.same_method(kind, name)


def _names(kind: type, functions: set[FunctionType]) -> list[str]:
    """The attributes of a class that matter to code traced through these functions."""
    implicit = _IMPLICIT_OF_MODULES if issubclass(kind, nn.Module) else _IMPLICIT
    names = dict.fromkeys(implicit)
    for base in kind.__mro__:
        for name, value in base.__dict__.items():
            if name not in names and any(each in functions for each in _inside(value)):
                names[name] = None
    return list(names)


def _inside(value: Any) -> Iterator[FunctionType]:
    """The functions that an attribute of a class may run."""
    if isinstance(value, FunctionType):
        yield value
        return
    for name in ("__func__", "fget", "fset", "func", "__wrapped__"):
        inner = value.__dict__.get(name) if _is_plain(value) else None
        inner = inner or getattr(value, name, None)
        if isinstance(inner, FunctionType):
            yield inner
        elif isinstance(inner, MethodType):
            yield inner.__func__  # type: ignore[misc]


def _is_plain(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", None), dict)


class _Guards:
    """Writes guards on objects that are held here, by a path from the root."""

    def __init__(self, root: Any, objects: dict[str, Any]) -> None:
        from torch._dynamo.guards import GuardManagerType

        self._type = GuardManagerType.GUARD_MANAGER
        self._objects = objects
        self._known: set[tuple[int, str]] = set()
        # Called "globals", it may be any dict: it is looked into at each check.
        self._root = root.globals_dict_manager(
            f_globals=objects,
            source="torchproof",
            example_value=objects,
            guard_manager_enum=self._type,
        )

    def same_level(self) -> None:
        namespace = self._held("forward_ad", forward_ad.__dict__)
        level = self._child(namespace.dict_getitem_manager, "_current_level", -1)
        _add(level.add_id_match_guard, id(-1), "forward-mode differentiation is on")

    def same_hooks(self, name: str) -> None:
        hooks = getattr(torch_modules, name)
        manager, text = self._held(name, hooks), f"{name} changed"
        if hooks:
            _add(manager.add_dict_version_guard, hooks, text)
        else:
            _add(manager.add_dict_length_check_guard, 0, text)

    def same_bases(self, kind: type) -> None:
        mro = kind.__mro__
        self._objects[f"bases of {_name(kind)}"] = mro  # so that its id stays its own
        manager = self._held(_name(kind), kind)
        child = self._child(manager.type_mro_manager, None, mro)
        _add(child.add_id_match_guard, id(mro), f"bases of {kind.__qualname__} changed")

    def same_method(self, kind: type, name: str) -> None:
        """The class finds the same under a name, at the same place, with its code."""
        for base in kind.__mro__:
            if not base.__flags__ & _HEAP_TYPE:
                continue
            is_there, key = name in base.__dict__, (id(base), name)
            if key not in self._known:
                self._known.add(key)
                if is_there:
                    self._same_value(base, name)
                else:
                    self._absent(base, name)
            if is_there:
                return

    def _absent(self, base: type, name: str) -> None:
        text = f"{base.__qualname__}.{name} was added"
        _add(self._attributes(base).add_dict_contains_guard, False, name, text)

    def _same_value(self, base: type, name: str) -> None:
        value = base.__dict__[name]
        text = f"{base.__qualname__}.{name} was replaced"
        child = self._child(self._attributes(base).dict_getitem_manager, name, value)
        _add(child.add_id_match_guard, id(value), text)
        if base is nn.Module:
            return
        for function in _inside(value):
            manager = child
            if function is not value:
                manager = self._held(f"{_name(base)}.{name} {id(function)}", function)
            code = self._child(manager.getattr_manager, "__code__", function.__code__)
            _add(code.add_id_match_guard, id(function.__code__), text)

    def _attributes(self, base: type) -> Any:
        manager = self._held(_name(base), base)
        return self._child(manager.type_dict_manager, None, dict(base.__dict__))

    def _held(self, name: str, value: Any) -> Any:
        self._objects[name] = value
        return self._child(self._root.dict_getitem_manager, name, value)

    def _child(self, make: Callable[..., Any], key: Any, example: Any) -> Any:
        keywords = {} if key is None else {_KEYS.get(make.__name__, "key"): key}
        return make(
            **keywords, source=f"{make.__name__} {key}", example_value=example,
            guard_manager_enum=self._type,
        )  # fmt: skip


_KEYS = {"getattr_manager": "attr"}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}@{id(kind):x}"


def _add(add: Callable[..., None], *arguments: Any) -> None:
    *arguments, text = arguments  # type: ignore[assignment]
    try:
        add(*arguments, [text], None)
    except TypeError:  # torch 2.11 takes no stack
        add(*arguments, [text])
