"""What stands in for a method of one module, and what was asked for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from torchproof.recipe.adoption import Given
from torchproof.records import UserError
from torchproof.runtime.telemetry import Listener
from torchproof.strategies import Strategy, parse

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


class Part:
    """A method of a module, or a function, that can run compiled or as it is."""

    def __init__(self, owner: nn.Module | None, name: str, plain: Any = None) -> None:
        self.owner = owner
        self.name = name
        # A method of the class is looked up anew, so that a copy calls its own.
        self.plain = plain
        self.run = self.eager
        functools.update_wrapper(self, self.eager)

    @property
    def eager(self) -> Callable[..., Any]:
        if self.plain is not None:
            plain: Callable[..., Any] = self.plain
            return plain
        method = getattr(type(self.owner), self.name)
        if isinstance(method, Part):  # compiled in the body of the class
            method = method.plain
        bound: Callable[..., Any] = method.__get__(self.owner)
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return type(self), (self.owner, self.name, self.plain)

    def remove_parts(self) -> None:
        """Takes back what it had others put in place of their own."""

    @classmethod
    def put(cls, owner: nn.Module, name: str, *rest: Any) -> Part:
        """Stands in for a method of this one module from here on."""
        known = owner.__dict__.get(name)
        plain = known.plain if isinstance(known, Part) else known
        if isinstance(known, Part):
            known.remove_parts()
        part = cls(owner, name, plain, *rest)
        owner.__dict__[name] = part
        return part


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
