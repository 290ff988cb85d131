"""Guards on classes: compiled code is invalid after a method that it inlined changes.

Dynamo guards the type of an object and the attributes of the instance, but not the
methods of its class. `record_inlined()` collects the functions that Dynamo inlines, and
`add_guards()` adds guards to the code compiled from them:
- for each class: its bases and their order, that the base which had each function still
  has it, that no earlier base has that name, and the code of the function;
- that the global module hooks are the same;
- that forward-mode differentiation is off, which AOTAutograd does not support.
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

from torchproof.records import Namespace
from torchproof.torch_private.replacements import Place, Replacement

_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
# Python calls these methods implicitly, also if they are added after tracing.
_IMPLICIT = ("__getattribute__", "__getattr__")
_IMPLICIT_OF_MODULES = (*_IMPLICIT, "__call__", "_wrapped_call_impl", "_call_impl")
# The modules that call functions marked by `assume_constant_result`.
_VARIABLES = ("torch._dynamo.variables.functions", "torch._dynamo.variables.nn_module")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the attributes of the class can be set


class InlinedFunctions:
    """Functions that Dynamo inlined, and the classes of the objects they belong to."""

    def __init__(self) -> None:
        self.functions: set[FunctionType] = set()
        self.kinds: dict[type, None] = {}
        self.constants: list[str] = []  # functions that were called while tracing

    def note(self, function: Any, arguments: Iterable[Any]) -> None:
        """Adds a function; takes Dynamo's variables for it and for its arguments."""
        plain = getattr(function, "fn", None)
        if isinstance(plain, FunctionType):
            self.functions.add(plain)
        for variable in (getattr(function, "obj", None), *arguments):
            value = _value_of(variable)
            kind = value if isinstance(value, type) else type(value)
            if kind.__flags__ & _HEAP_TYPE:
                self.kinds[kind] = None


def _value_of(variable: Any) -> Any:
    """The value of a Dynamo variable, without realising a lazy one."""
    fields = getattr(variable, "__dict__", {})
    if "_cache" in fields:  # a lazy variable
        return getattr(fields["_cache"], "value", None)
    return fields.get("value")


_inlined: contextvars.ContextVar[InlinedFunctions | None] = contextvars.ContextVar(
    "torchproof_inlined", default=None
)


@contextlib.contextmanager
def record_inlined() -> Iterator[InlinedFunctions]:
    """Records the functions that Dynamo inlines inside, in this thread."""
    inlined = InlinedFunctions()
    token = _inlined.set(inlined)
    try:
        with _replacement.active():
            yield inlined
    finally:
        _inlined.reset(token)


def _places() -> Iterator[Place]:
    home = importlib.import_module("torch._dynamo.symbolic_convert")
    yield home.InliningInstructionTranslator, "inline_call", _recording
    for name in _VARIABLES:
        module = importlib.import_module(name)
        yield module, "invoke_and_store_as_constant", _recording_constants


def _recording(method: Any) -> Any:
    original = method.__func__  # of a class method

    @functools.wraps(original)
    def inline(cls: Any, parent: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        inlined = _inlined.get()
        if inlined is not None:
            # The first argument is the object of `Base.method(self, ...)`.
            inlined.note(func, args[0][:1] if args else ())
        return original(cls, parent, func, *args, **kwargs)

    return classmethod(inline)


def _recording_constants(original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes functions that `assume_constant_result` marks: results have no guards."""

    @functools.wraps(original)
    def invoke(tx: Any, fn: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        inlined = _inlined.get()
        if inlined is not None:
            inlined.constants.append(name)
        return original(tx, fn, name, *args, **kwargs)

    return invoke


_replacement = Replacement(_places)


def is_forward_ad_on() -> bool:
    """Whether forward-mode differentiation is on (`forward_ad.dual_level()`)."""
    level: int = forward_ad._current_level
    return level >= 0


def add_guards(guard_manager: Any, inlined: InlinedFunctions) -> None:
    """Adds the guards on classes to the guards of compiled code."""
    objects: Namespace = {}
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
    """The attributes of a class that code with these inlined functions depends on."""
    implicit = _IMPLICIT_OF_MODULES if issubclass(kind, nn.Module) else _IMPLICIT
    names = dict.fromkeys(implicit)
    for base in kind.__mro__:
        for name, value in base.__dict__.items():
            if name not in names and any(each in functions for each in _inside(value)):
                names[name] = None
    return list(names)


def _inside(value: Any) -> Iterator[FunctionType]:
    """The functions that an attribute of a class runs, as a property does."""
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
    """Adds guards on objects, which it keeps alive in a dict below the root guard."""

    def __init__(self, root: Any, objects: Namespace) -> None:
        from torch._dynamo.guards import GuardManagerType

        self._type = GuardManagerType.GUARD_MANAGER
        self._objects = objects
        self._guarded: set[tuple[int, str]] = set()
        # Torch calls it "globals", but accepts any dict and reads it at each check.
        self._root = root.globals_dict_manager(
            f_globals=objects,
            source="torchproof",
            example_value=objects,
            guard_manager_enum=self._type,
        )

    def same_level(self) -> None:
        namespace = self._object_manager("forward_ad", forward_ad.__dict__)
        level = self._child(namespace.dict_getitem_manager, "_current_level", -1)
        _add(level.add_id_match_guard, id(-1), "forward-mode differentiation is on")

    def same_hooks(self, name: str) -> None:
        hooks = getattr(torch_modules, name)
        manager = self._object_manager(name, hooks)
        text = f"{name} changed"
        if hooks:
            _add(manager.add_dict_version_guard, hooks, text)
        else:
            _add(manager.add_dict_length_check_guard, 0, text)

    def same_bases(self, kind: type) -> None:
        mro = kind.__mro__
        self._objects[f"bases of {_name(kind)}"] = mro  # so that its id is not reused
        manager = self._object_manager(_name(kind), kind)
        child = self._child(manager.type_mro_manager, None, mro)
        _add(child.add_id_match_guard, id(mro), f"bases of {kind.__qualname__} changed")

    def same_method(self, kind: type, name: str) -> None:
        """Guards that the class finds the same function, on the same base."""
        for base in kind.__mro__:
            if not base.__flags__ & _HEAP_TYPE:
                continue
            is_there = name in base.__dict__
            key = (id(base), name)
            if key not in self._guarded:
                self._guarded.add(key)
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
                manager = self._object_manager(
                    f"{_name(base)}.{name} {id(function)}", function
                )
            code = self._child(manager.getattr_manager, "__code__", function.__code__)
            _add(code.add_id_match_guard, id(function.__code__), text)

    def _attributes(self, base: type) -> Any:
        manager = self._object_manager(_name(base), base)
        return self._child(manager.type_dict_manager, None, dict(base.__dict__))

    def _object_manager(self, name: str, value: Any) -> Any:
        self._objects[name] = value
        return self._child(self._root.dict_getitem_manager, name, value)

    def _child(self, make: Callable[..., Any], key: Any, example: Any) -> Any:
        keywords = {} if key is None else {_KEYS.get(make.__name__, "key"): key}
        return make(
            **keywords,
            source=f"{make.__name__} {key}",
            example_value=example,
            guard_manager_enum=self._type,
        )


_KEYS = {"getattr_manager": "attr"}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}@{id(kind):x}"


def _add(add: Callable[..., None], *arguments_and_text: Any) -> None:
    *arguments, text = arguments_and_text
    try:
        add(*arguments, [text], None)
    except TypeError:  # torch 2.11 has no parameter for the stack
        add(*arguments, [text])
