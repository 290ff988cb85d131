"""`MethodReplacement`: replaces a method of one module by a callable that may compile.

Also the `Options` of `torchproof.compile`, which are pickled with the model.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from torchproof.process import forks
from torchproof.records import Keywords, Namespace, UserError
from torchproof.runtime.telemetry import Listener
from torchproof.strategies import RecipeSource, Strategy, parse
from torchproof.torch_private import (
    contract,
    frames,
    module_copies,
    switches,
)

Verify = Literal["first", False] | int


@dataclass(frozen=True)
class Options:
    """The options of `torchproof.compile`; pickled with the model except `on_event`."""

    strategy: str
    why: str
    deadline_s: float
    verify: Verify = False
    wait: bool = True
    recompile_limit: int | None = None  # None: that of torch's configuration
    arguments: Keywords = field(default_factory=dict)
    on_event: Listener | None = None
    recipe: RecipeSource | None = None
    by_recipe: Strategy | None = None  # the recipe's strategy, as a forward can run it

    @property
    def requested(self) -> Strategy:
        return self.by_recipe or parse(self.strategy)

    @property
    def compile_with(self) -> Keywords:
        """The arguments for `torch.compile`, from the strategy and from the user."""
        return {**self.requested.arguments, **self.arguments}

    @property
    def fullgraph(self) -> bool:
        """Whether a graph break is an error."""
        return bool(self.compile_with.get("fullgraph"))

    @property
    def for_dynamo(self) -> Keywords:
        """The arguments for `torch.compile` that concern tracing."""
        arguments = self.compile_with
        of_tracing = "dynamic", "shapes_spec"
        found: dict[str, Any] = {k: arguments[k] for k in of_tracing if k in arguments}
        if chosen := (arguments.get("options") or {}).get(switches.GUARD_FILTER):
            found["options"] = {switches.GUARD_FILTER: chosen}
        return found

    @property
    def uses_inductor(self) -> bool:
        return bool(self.compile_with.get("backend", "inductor") == "inductor")

    @property
    def codegen_in_child(self) -> bool:
        return self.uses_inductor and not contract.missing("compile in a child process")

    def __getstate__(self) -> Namespace:
        return self.__dict__ | {"on_event": None}


class _Documentation:
    """The docstring of the replaced method; on the class, the class's own."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __get__(self, part: MethodReplacement | None, kind: type) -> str | None:
        return self._text if part is None else part.eager.__doc__


class _NoOwner:
    """The owner of a function: its class never gets another forward."""

    forward = None


_NO_OWNER = _NoOwner()


class MethodReplacement:
    """Replaces a method of a module, or a function, and runs it compiled or eager.

    Attributes that it does not have itself are read, set and deleted on the replaced
    method or function.
    """

    _initialised = False
    _is_complete = True  # when `__init__` of this class ends

    def __init__(self, owner: nn.Module | None, name: str, plain: Any = None) -> None:
        self.owner = owner
        self.name = name
        # None for a method of the class: a copy of the module then looks up its own.
        self.plain = plain
        self._remember_class()
        self.rebuild: Callable[[], None] = self.rebuild_eager
        self._initialised = self._is_complete
        if owner is not None:
            module_copies.after_copying(_adjust_copy, _adjust_replica)
            _live.add(self)

    @property
    def eager(self) -> Callable[..., Any]:
        """The original method, bound as Python binds it."""
        if self.plain is not None:
            plain: Callable[..., Any] = self.plain
            return plain
        kind = type(self.owner)
        method = _in_class(kind, self.name)
        if isinstance(method, MethodReplacement):  # compiled in the body of the class
            method = method.plain
        bind = getattr(type(method), "__get__", None)
        try:
            if method is not None:
                return method if bind is None else bind(method, self.owner, kind)
        except AttributeError:
            pass  # Python then calls `__getattr__`; traced modules rely on it
        dynamic: Any = getattr(kind, "__getattr__")  # noqa: B009
        bound: Callable[..., Any] = dynamic(self.owner, self.name)
        return bound

    @property
    def run(self) -> Callable[..., Any]:
        """The callable that each call runs."""
        run: Callable[..., Any] = self._per_call[0]
        return run

    @run.setter
    def run(self, run: Callable[..., Any]) -> None:
        self._run = run  # for Dynamo, which would trace everything in a tuple
        # One tuple, because every attribute that a call reads takes time. The class of
        # a scripted module lacks the method, so there is nothing to compare.
        is_method = self.owner is not None and hasattr(type(self.owner), self.name)
        owner = self.owner if is_method else _NO_OWNER
        self._per_call = (run, owner, self._class_method, *self._also_per_call())

    def _also_per_call(self) -> tuple[Any, ...]:
        """What else each call uses."""
        return ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return self._run(*args, **kwargs)
        run, owner, method = self._per_call
        if getattr(type(owner), self.name, None) is not method:
            run = self.refresh_method()
        try:
            return run(*args, **kwargs) if kwargs else run(*args)
        except RuntimeError as error:
            if not frames.refuses_to_be_traced(error):
                raise
            return self.eager(*args, **kwargs)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return type(self), (self.owner, self.name, self.plain)

    # -- changes of the class ----------------------------------------------------------

    def _remember_class(self) -> None:
        kind = type(self.owner)
        self._class = kind
        self._method = _in_class(kind, self.name)
        # Each call compares this: for most methods, the function itself.
        is_method = self.owner is not None
        self._class_method = getattr(kind, self.name, None) if is_method else None
        # Dynamo can trace an attribute where it cannot trace a property.
        self.__wrapped__ = self.run = eager = self.eager
        self.__module__ = getattr(eager, "__module__", None) or type(self).__module__

    def refresh_method(self) -> Callable[..., Any]:
        """Rebuilds the callable if the class has another method now; returns it."""
        with _refreshing:
            kind = type(self.owner)
            method = _in_class(kind, self.name)
            # `getattr` makes a new object each time for a class method, for example.
            if kind is not self._class or method is not self._method:
                before = self.run
                self._remember_class()
                self.run = before
                self.rebuild()
            return self.run

    def rebuild_eager(self) -> None:
        self.run = self.eager

    # -- attributes of the replaced method ---------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if "plain" not in self.__dict__:  # not initialised yet
            raise AttributeError(name)
        return getattr(self.eager, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._owns(name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.eager, name, value)

    def __delattr__(self, name: str) -> None:
        if self._owns(name):
            object.__delattr__(self, name)
        else:
            delattr(self.eager, name)

    def _owns(self, name: str) -> bool:
        if not self._initialised or name in self.__dict__:
            return True
        return name != "__doc__" and _in_class(type(self), name) is not None

    def __init_subclass__(cls) -> None:
        cls.__doc__ = _Documentation(cls.__doc__)  # type: ignore[assignment]

    def remove_parts(self) -> None:
        """Removes the replacements that it installed in other modules."""

    def for_copy(self, module: nn.Module) -> Any:
        """What a shallow copy of its module gets instead; None: the class's method."""
        return self.plain

    def for_replica(self) -> Any:
        """The same for a copy that nn.DataParallel makes for one call."""
        return self.plain

    @classmethod
    def install(cls, owner: nn.Module, name: str, *rest: Any) -> MethodReplacement:
        """Replaces a method of this one module."""
        current = owner.__dict__.get(name)
        plain = current.plain if isinstance(current, MethodReplacement) else current
        if isinstance(current, MethodReplacement):
            current.remove_parts()
        part = cls(owner, name, plain, *rest)
        owner.__dict__[name] = part
        return part


class BlockForward(MethodReplacement):
    """Replaces the forward of a block; its call knows the name, which saves time."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return self._run(*args, **kwargs)
        run, owner, method = self._per_call
        if type(owner).forward is not method:
            run = self.refresh_method()
        try:
            return run(*args, **kwargs) if kwargs else run(*args)
        except RuntimeError as error:
            if not frames.refuses_to_be_traced(error):
                raise
            return self.eager(*args, **kwargs)


def _adjust_copy(module: nn.Module) -> None:
    """A shallow copy would call the original module: it gets methods of its own."""
    for name, part in _foreign_parts(module):
        _set_method(module, name, part.for_copy(module))


def _adjust_replica(module: nn.Module) -> None:
    for name, part in _foreign_parts(module):
        _set_method(module, name, part.for_replica())


def _foreign_parts(module: nn.Module) -> list[tuple[str, MethodReplacement]]:
    return [
        (name, value)
        for name, value in module.__dict__.items()
        if isinstance(value, MethodReplacement) and value.owner is not module
    ]


def _set_method(module: nn.Module, name: str, method: Any) -> None:
    if method is None:
        del module.__dict__[name]
    else:
        module.__dict__[name] = method


_live: weakref.WeakSet[MethodReplacement] = weakref.WeakSet()
_refreshing = threading.RLock()


def refresh_all() -> None:
    """Rebuilds every replacement whose class has another method now.

    Needed before tracing: Dynamo traces `run` without comparing the method.
    """
    for part in forks.alive(_live):
        if getattr(type(part.owner), part.name, None) is not part._class_method:
            part.refresh_method()


def _in_class(kind: type, name: str) -> Any:
    """The attribute of a class, unbound; None if the class has none."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def why_eager(owner: nn.Module | None) -> str | None:
    """Why the forward of a module cannot be replaced, or None."""
    if isinstance(owner, torch.jit.ScriptModule):
        return "TorchScript modules cannot be compiled"
    method = _in_class(type(owner), "forward")
    if owner is None or not hasattr(type(method), "__set__"):
        return None
    return (
        f"forward of {type(owner).__name__} is a {type(method).__name__}, which Python"
        " looks up before any attribute of the instance"
    )


def method_of(owner: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that has a method, and the method's name; of a module, `forward`."""
    holder, _, name = path.rpartition(".")
    if path == "forward":
        raise UserError("core:forward is the whole model: strategy='full'")
    try:
        module = owner.get_submodule(holder)
    except AttributeError as error:
        raise UserError(f"core:{path}: {error}") from None
    method = getattr(module, name, None)
    if isinstance(method, nn.Module):
        return method, "forward"
    if not callable(method):
        raise UserError(f"core:{path}: {type(module).__name__} has no method {name}")
    return module, name
