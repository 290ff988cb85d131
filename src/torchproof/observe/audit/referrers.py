"""Finds what keeps a tensor alive: follows its referrers up to a named object.

Takes live tensors that share one memory. Returns the expression that leads to one of
them, such as `outs[0]`, `variant.policy_scores` or `model.fc.weight.grad`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from torchproof.observe.audit import stacks
from torchproof.observe.audit.stacks import is_program_code
from torchproof.torch_private import cudagraph_trees

_LEVELS = 8  # how far referrers are followed: a tensor in a module in a list...
_WIDTH = 400  # how many referrers of one level are followed
_REGISTRIES = re.compile(r"\._(?:parameters|buffers|modules)\['([^']+)'\]")


@dataclass(frozen=True)
class Referrer:
    """The path to a tensor, and the function whose local variable it starts from."""

    path: str
    function: types.CodeType | None = None

    @property
    def is_variable(self) -> bool:
        """Whether only a local variable refers to the tensor, until it is rebound."""
        return self.function is not None and self.path.isidentifier()

    @property
    def is_passing(self) -> bool:
        """Whether the path starts at a short-lived variable, as of a comprehension."""
        function = self.function.co_name if self.function else ""
        return self.is_variable or (function[:1] == "<" and function != "<module>")


def sharing(keys: Iterable[int]) -> dict[int, list[tuple[Any, str]]]:
    """Live tensors by their memory, each with the rest of the path to that memory.

    The rest is empty, or `.grad` if the memory belongs to the tensor's gradient.
    """
    searched = set(keys)
    tensors: dict[int, list[tuple[Any, str]]] = {key: [] for key in searched}
    for tensor in gc.get_objects():
        # isinstance() would run code of the object.
        if not issubclass(type(tensor), torch.Tensor):
            continue
        for each, rest in _with_gradient(tensor):
            key = cudagraph_trees.memory_key(each)
            if key in searched:
                tensors[key].append((tensor, rest))
    return tensors


def _with_gradient(tensor: Any) -> Iterator[tuple[Any, str]]:
    yield tensor, ""
    with contextlib.suppress(RuntimeError, TypeError, AttributeError):
        if tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad, ".grad"


def referrer_of(tensors: Iterable[tuple[Any, str]]) -> Referrer | None:
    """The shortest path to one of the tensors from a variable, a global or an object.

    A container or an object is preferred to a short-lived variable.
    """
    names = _Names()
    passing: Referrer | None = None
    for tensor, rest in sorted(tensors, key=lambda each: each[1], reverse=True):
        referrer = _climb(tensor, rest, names)
        if referrer is not None and not referrer.is_passing:
            return referrer
        passing = passing or referrer
    return passing


class _Names:
    """Objects with a name: local variables of running frames, and modules."""

    def __init__(self) -> None:
        self.locals: dict[int, Referrer] = {}
        self.modules = {
            id(module.__dict__): name
            for name, module in list(sys.modules.items())
            if is_program_code(getattr(module, "__file__", None) or "<none>")
        }
        for frame in stacks.running_frames():
            for name, number in _variables(frame):
                earlier = self.locals.get(number)
                # The caller's name for an object is more specific than `self`.
                if earlier is None or earlier.path == "self":
                    self.locals[number] = Referrer(name, frame.f_code)


def _variables(frame: types.FrameType) -> list[tuple[str, int]]:
    """Names and ids of a frame's variables, without keeping the values alive."""
    values = frame.f_locals
    variables = [(n, id(v)) for n, v in values.items() if n.isidentifier()]
    optimized = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if sys.version_info < (3, 13) and optimized:
        values.clear()  # a copy that would live as long as the frame
    return variables


@dataclass(frozen=True)
class _Step:
    """One object above the tensor, and the path from it to the tensor."""

    value: Any
    path: str


def _climb(tensor: Any, rest: str, names: _Names) -> Referrer | None:
    """Prefers a lasting referrer: `outs[0]`, not the loop variable `o`."""
    visited = {id(tensor)}
    level = [_Step(tensor, rest)]
    variable: Referrer | None = None
    unnamed: _Step | None = None
    for _ in range(_LEVELS):
        for step in level:
            referrer = _named(step, names)
            if referrer is not None and not referrer.is_passing:
                return referrer
            variable = variable or referrer
        level = list(_above(level, visited))[:_WIDTH]
        unnamed = next((s for s in level if _is_object(s.value)), unnamed)
        if not level:
            break
    if variable is None and unnamed is not None:
        return Referrer(type(unnamed.value).__name__ + _tidy(unnamed.path))
    return variable


def _above(level: list[_Step], visited: set[int]) -> Iterator[_Step]:
    """The referrers of a level, with the path from each of them to the tensor."""
    objects = [step.value for step in level]
    for referrer in gc.get_referrers(*objects):
        if (
            id(referrer) in visited
            or referrer is objects
            or isinstance(referrer, _Step)
        ):
            continue
        paths = (_path(referrer, step) for step in level)
        path = next((each for each in paths if each is not None), None)
        if path is not None:
            visited.add(id(referrer))
            yield _Step(referrer, path)


def _named(step: _Step, names: _Names) -> Referrer | None:
    if isinstance(step.value, (types.FunctionType, types.GeneratorType)):
        name = step.path.lstrip(".")  # its own variable
        return Referrer(_tidy(name)) if name else None
    local = names.locals.get(id(step.value))
    if local is not None:
        return Referrer(local.path + _tidy(step.path), local.function)
    if id(step.value) in names.modules:  # a module's namespace
        key = re.match(r"\['(\w+)'\]", step.path)
        return Referrer(_tidy(key[1] + step.path[key.end() :])) if key else None
    return None


def _tidy(path: str) -> str:
    """The path without the dictionaries of modules: `.fc.weight`."""
    return _REGISTRIES.sub(r".\1", path)


def _is_object(value: Any) -> bool:
    """Whether the value is an instance of a user's or library's class."""
    plain = (dict, list, tuple, set, frozenset, collections.deque, types.CellType)
    if isinstance(value, (*plain, type, types.ModuleType, torch.Tensor)):
        return False
    home = sys.modules.get(type(value).__module__)
    if isinstance(value, torch.nn.Module):
        return type(value).__name__ != "OptimizedModule"
    return is_program_code(getattr(home, "__file__", None) or "<none>")


def _path(referrer: Any, step: _Step) -> str | None:
    """The path from a referrer to the tensor; None if no code would write it."""
    below, path = step.value, step.path
    if isinstance(referrer, dict):
        key = next((k for k, v in referrer.items() if v is below), _NONE)
        return None if key is _NONE else f"[{key!r}]{path}"
    if isinstance(referrer, (list, tuple, collections.deque)):
        index = next((i for i, v in enumerate(referrer) if v is below), None)
        if index is None:
            return None
        fields = getattr(referrer, "_fields", None)  # of a named tuple
        return f".{fields[index]}{path}" if fields else f"[{index}]{path}"
    if isinstance(referrer, (set, frozenset)):
        return f"{{...}}{path}" if any(v is below for v in referrer) else None
    if isinstance(referrer, types.CellType):
        return path if _contents(referrer) is below else None
    if isinstance(referrer, types.FunctionType):
        return _closure(referrer, step)
    if isinstance(referrer, types.GeneratorType):
        return _of_generator(referrer, step)
    if isinstance(referrer, types.MethodType):
        return path if referrer.__self__ is below else None
    if isinstance(referrer, functools.partial):
        return path if any(v is below for v in gc.get_referents(referrer)) else None
    if isinstance(referrer, (types.ModuleType, types.FrameType, type, Optimizer)):
        return None  # a parameter is named by its module, not by an optimizer
    return _attribute(referrer, step)


_NONE = object()


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return _NONE


def _closure(function: types.FunctionType, step: _Step) -> str | None:
    """The path to a variable that a function encloses."""
    cells = function.__closure__
    is_program_function = is_program_code(function.__code__.co_filename)
    if is_program_function and cells is not None and step.value is cells:
        index = re.match(r"\[(\d+)\]", step.path)
        if index is None:
            return None
        name = function.__code__.co_freevars[int(index[1])]
        return f".{name}{step.path[index.end() :]}"
    return None


def _of_generator(generator: Any, step: _Step) -> str | None:
    frame = generator.gi_frame
    if frame is None or not is_program_code(frame.f_code.co_filename):
        return None
    names = [n for n, number in _variables(frame) if number == id(step.value)]
    return f".{names[0]}{step.path}" if names else None


def _attribute(owner: Any, step: _Step) -> str | None:
    """The path through an attribute, in the instance's dictionary or a slot."""
    namespace = getattr(type(owner), "__dictoffset__", 0) and getattr(
        owner, "__dict__", None
    )
    if namespace is step.value:  # the dictionary is one level below
        key = re.match(r"\['(\w+)'\]", step.path)
        return f".{key[1]}{step.path[key.end() :]}" if key else None
    for name, value in namespace.items() if isinstance(namespace, dict) else ():
        if value is step.value:
            return f".{name}{step.path}"
    for name in _slots(type(owner)):
        with contextlib.suppress(AttributeError):
            if getattr(owner, name) is step.value:
                return f".{name}{step.path}"
    return None


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
