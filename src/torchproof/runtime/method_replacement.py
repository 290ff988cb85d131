"""What stands in for a method of one module, and what was asked for it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from torchproof.records import UserError
from torchproof.runtime.telemetry import Listener
from torchproof.strategies import Given, Strategy, parse
from torchproof.torch_private import frames, scripting

Verify = Literal["first", False] | int


@dataclass(frozen=True)
class Options:
    """What was asked for; pickled with the model, but for `on_event`."""

    strategy: str
    why: str
    deadline_s: float
    verify: Verify = False
    wait: bool = True
    recompile_limit: int = 8
    monitor: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    on_event: Listener | None = None
    recipe: Given | None = None
    by_recipe: Strategy | None = None  # what its recipe says, as it can be followed

    @property
    def asked(self) -> Strategy:
        return self.by_recipe or parse(self.strategy)

    @property
    def compile_with(self) -> dict[str, Any]:
        """What torch.compile is told, by the strategy and beside it."""
        return {**self.asked.arguments, **self.arguments}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"on_event": None}


class _Documentation:
    """The text of what a part stands for; of the class itself, its own."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __get__(self, part: MethodReplacement | None, kind: type) -> str | None:
        return self._text if part is None else part.eager.__doc__


class _Nobody:
    """Stands for the owner of a function: its class never has another forward."""

    forward = None


_NOBODY = _Nobody()


class MethodReplacement:
    """A method of a module, or a function, that can run compiled or as it is.

    Attributes that it does not have itself are those of what it stands for: they are
    read, set and deleted there.
    """

    _counting: tuple[Any, ...] = ()  # where calls are counted, if they are

    def __init__(self, owner: nn.Module | None, name: str, plain: Any = None) -> None:
        self.owner = owner
        self.name = name
        # A method of the class is looked up anew, so that a copy calls its own.
        self.plain = plain
        self._remember_class()
        self.rebuild: Callable[[], None] = self.rebuild_eager
        self._is_made = type(self) is MethodReplacement
        scripting.read_source_of(MethodReplacement, _eager_of)
        if owner is not None:
            _live.add(self)

    @property
    def eager(self) -> Callable[..., Any]:
        """What a call runs that is not compiled, bound as Python binds it."""
        if self.plain is not None:
            plain: Callable[..., Any] = self.plain
            return plain
        kind = type(self.owner)
        method = _in_class(kind, self.name)
        if method is None:
            dynamic: Any = getattr(kind, "__getattr__")  # noqa: B009
            found: Callable[..., Any] = dynamic(self.owner, self.name)
            return found
        if isinstance(method, MethodReplacement):  # compiled in the body of the class
            method = method.plain
        bind = getattr(type(method), "__get__", None)
        return method if bind is None else bind(method, self.owner, kind)

    @property
    def run(self) -> Callable[..., Any]:
        """What a call runs from here on."""
        run: Callable[..., Any] = self._of_each_call[0]
        return run

    @run.setter
    def run(self, run: Callable[..., Any]) -> None:
        self._run = run  # for Dynamo, which would look at all that is in a tuple
        # In one attribute, as each that a call reads takes time. A class that has no
        # such attribute, like that of a scripted module, has none to compare either.
        is_method = self.owner is not None and hasattr(type(self.owner), self.name)
        owner = self.owner if is_method else _NOBODY
        self._of_each_call = run, owner, self.name, self._seen, *self._counting

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return self._run(*args, **kwargs)
        run, owner, name, seen = self._of_each_call
        if getattr(type(owner), name, None) is not seen:
            run = self.look_again()
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            if not frames.refuses_to_be_traced(error):
                raise
            return self.eager(*args, **kwargs)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return type(self), (self.owner, self.name, self.plain)

    # -- the class, which may change ---------------------------------------------------

    def _remember_class(self) -> None:
        kind = type(self.owner)
        self._class, self._method = kind, _in_class(kind, self.name)
        # What a call compares: for most methods, the function itself.
        is_method = self.owner is not None
        self._seen = getattr(kind, self.name, None) if is_method else None
        # Dynamo follows an attribute where it cannot follow a property.
        self.__wrapped__ = self.run = eager = self.eager
        self.__module__ = getattr(eager, "__module__", None) or type(self).__module__

    def look_again(self) -> Callable[..., Any]:
        """Runs another method from here on, if the class has another one by now."""
        with _looking:
            kind = type(self.owner)
            method = _in_class(kind, self.name)
            # Of a class method, say, each look makes another object.
            if kind is not self._class or method is not self._method:
                before = self.run
                self._remember_class()
                self.run = before
                self.rebuild()
            return self.run

    def rebuild_eager(self) -> None:
        self.run = self.eager

    # -- attributes of what it stands for ----------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if "plain" not in self.__dict__:  # not made yet
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
        if not self.__dict__.get("_is_made") or name in self.__dict__:
            return True
        return name != "__doc__" and _in_class(type(self), name) is not None

    def __init_subclass__(cls) -> None:
        cls.__doc__ = _Documentation(cls.__doc__)  # type: ignore[assignment]

    def remove_parts(self) -> None:
        """Takes back what it had others put in place of their own."""

    @classmethod
    def put(cls, owner: nn.Module, name: str, *rest: Any) -> MethodReplacement:
        """Stands in for a method of this one module from here on."""
        known = owner.__dict__.get(name)
        plain = known.plain if isinstance(known, MethodReplacement) else known
        if isinstance(known, MethodReplacement):
            known.remove_parts()
        part = cls(owner, name, plain, *rest)
        owner.__dict__[name] = part
        return part


def _eager_of(part: MethodReplacement) -> Callable[..., Any]:
    return part.eager


_live: weakref.WeakSet[MethodReplacement] = weakref.WeakSet()
_looking = threading.RLock()


def look_again() -> None:
    """Every part takes up the method that its class has by now.

    For what is about to be traced: Dynamo follows `run`, and compares nothing.
    """
    for part in list(_live):
        if getattr(type(part.owner), part.name, None) is not part._seen:
            part.look_again()


def _in_class(kind: type, name: str) -> Any:
    """What a class has under a name, as it lies there; None if nothing does."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def why_eager(owner: nn.Module | None) -> str | None:
    """Why nothing can stand in for the forward of a module."""
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
    """The module that has a method, and its name; of a module, its forward."""
    holder, _, name = path.rpartition(".")
    if path == "forward":
        raise UserError("core:forward is the whole model: strategy='full'")
    try:
        found = owner.get_submodule(holder)
    except AttributeError as error:
        raise UserError(f"core:{path}: {error}") from None
    method = getattr(found, name, None)
    if isinstance(method, nn.Module):
        return method, "forward"
    if not callable(method):
        raise UserError(f"core:{path}: {type(found).__name__} has no method {name}")
    return found, name
