"""Records the calls of one function while a target runs in eager mode.

A probe is an edit of the source: `helper(x)` becomes `probed(helper, locals())(x)`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchproof import torch_private
from torchproof.fixing.behaviour import random_digest
from torchproof.fixing.observed_calls import ObservedCall, Value
from torchproof.records import Keywords, Namespace
from torchproof.runtime import is_data

observed: list[ObservedCall] = []
_returned: list[Tensor] = []  # keeps the memory of results from being used again


def probed(
    function: Callable[..., Any],
    variables: Namespace,
    *,
    differentiable: bool = False,
) -> Callable[..., Any]:
    """The function, with a record of each call that does not raise.

    A differentiable function may compute numbers from numbers, with a gradient.
    """
    variables = dict(variables)

    def call(*arguments: Any, **keywords: Any) -> Any:
        call_arguments = [arguments, keywords]
        before = _state(function, call_arguments)
        digest = _digest(call_arguments)
        random = random_digest()
        with _Parameters() as parameters:
            result = function(*arguments, **keywords)
        problem = _problem(function, call_arguments, result)
        if not differentiable:
            problem = problem or _computes(call_arguments, result)
        elif random_digest() != random:
            problem = problem or "it draws random numbers, and has a gradient"
        if problem is None and _state(function, call_arguments) != before:
            problem = "it changes an argument, or the object it belongs to"
        if problem is None and parameters.used:
            problem = "it computes with parameters of the model"
        several = isinstance(result, tuple)
        results = tuple(_value(each) for each in (result if several else (result,)))
        observed.append(
            ObservedCall(
                _scope(arguments, keywords, variables),
                results,
                several,
                digest,
                _integers(getattr(function, "__func__", function)),
                problem,
            )
        )
        _returned.extend(_tensors(result))
        return result

    return call


def note(variables: Namespace, number: int) -> None:
    """Records the variables at a place, which has a number."""
    observed.append(ObservedCall(_scope([number], {}, variables), (), False, ""))


def probed_data(function: types.FunctionType) -> Callable[..., Any]:
    """A function of Python objects, with a record of why it has to run in its place."""

    def call(*arguments: Any) -> Any:
        read = [arguments, _globals(function)]
        before, random = _plain_values(read), random_digest()
        result = function(*arguments)
        again = function(*arguments)
        problem = None
        if next(_tensors(arguments), None) is not None:
            problem = "they read tensors"
        elif _plain_values(read) != before:
            problem = "they change an object that they did not make"
        elif random_digest() != random:
            problem = "they draw random numbers"
        elif again != result:
            problem = "their results are others each time"
        elif _containers(result) & (_containers(again) | _containers(read)):
            problem = "their result is an object that something else has"
        observed.append(ObservedCall({}, (), False, "", problem=problem))
        return result

    return call


def _globals(function: types.FunctionType) -> Namespace:
    """The variables of its module that a function names."""
    known, code = function.__globals__, function.__code__
    return {name: known[name] for name in code.co_names if name in known}


def _containers(value: Any) -> set[int]:
    every = torch_private.trees.walk(value, objects=True)
    return {id(part) for _, part in every if isinstance(part, list | dict)}


def _plain_values(value: Any) -> list[tuple[str, object]]:
    found = torch_private.trees.values_of(value, "")
    return [(n, v) for n, v in found.items() if not isinstance(v, Tensor)]


def _scope(
    arguments: Sequence[Any], keywords: Keywords, variables: Namespace
) -> dict[str, Value]:
    every = {str(index): each for index, each in enumerate(arguments)}
    every |= keywords
    every |= {f".{name}": each for name, each in variables.items()}
    values = {name: _value(each) for name, each in every.items()}
    return {name: each for name, each in values.items() if each.kind != "other"}


def _value(value: Any) -> Value:
    if isinstance(value, Tensor):
        dtype, device = str(value.dtype), str(value.device)
        return Value("tensor", tuple(value.shape), dtype, device)
    if isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf":
        tensor = torch.as_tensor(value)
        return Value("array", tuple(value.shape), str(tensor.dtype), "cpu")
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Value("integer", (value,))
    is_sequence = isinstance(value, (tuple, list)) and len(value) > 0
    if is_sequence and all(type(each) is int and each >= 0 for each in value):
        return Value("integers", tuple(value))
    if is_data(value):
        return Value("data", dtype=type(value).__name__)
    return Value("other", dtype=type(value).__name__)


def _problem(function: Any, given: Any, result: Any) -> str | None:
    results = list(_tensors(result))
    if isinstance(function, torch.nn.Module):
        return "it is a module of the model"
    known = [*_tensors(given), *_tensors(_owned(function)), *_returned]
    memory = {each.untyped_storage().data_ptr() for each in known if each.numel()}
    own = [each.untyped_storage().data_ptr() for each in results if each.numel()]
    if memory.intersection(own) or len(set(own)) < len(own):
        return "its result shares memory with something else"
    return None


def _computes(given: Any, result: Any) -> str | None:
    """Why a call belongs into the graph."""
    results = list(_tensors(result))
    if any(each.requires_grad for each in results):
        return "its result has a gradient"
    floats = [each for each in _tensors(given) if each.is_floating_point()]
    if floats and any(each.is_floating_point() for each in results):
        return "it computes numbers from the numbers of its arguments"
    return None


def _tensors(value: Any) -> Iterator[Tensor]:
    return iter(torch_private.trees.tensors(value, objects=True))


def _owned(function: Any) -> Namespace:
    """What the object of a method keeps."""
    owner = getattr(function, "__self__", None)
    kept = dict(getattr(owner, "__dict__", {}))
    if isinstance(owner, torch.nn.Module):
        kept |= dict(owner.named_parameters()) | dict(owner.named_buffers())
        for name in ("_modules", "_parameters", "_buffers"):
            kept.pop(name, None)
    return kept


def _state(function: Any, given: Any) -> list[object]:
    """Equal before and after a call that changes nothing."""
    kept = _owned(function)
    found: list[object] = [(name, id(value)) for name, value in kept.items()]
    for name, leaf in torch_private.trees.leaves([given, kept], ""):
        version = leaf._version if isinstance(leaf, Tensor) else 0
        found.append((name, id(leaf), version))
    return found


def _digest(given: Any) -> str:
    digest = hashlib.sha256()
    for each in _tensors(given):
        flat = each.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


class _Parameters(TorchFunctionMode):
    """Notices operations on parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name != "__get__":  # a size or a type of a parameter
            values = [*args, *(kwargs or {}).values()]
            self.used |= any(isinstance(each, torch.nn.Parameter) for each in values)
        return func(*args, **(kwargs or {}))


@functools.lru_cache(maxsize=64)
def _integers(function: Any) -> tuple[int, ...]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ()
    literals = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
    return tuple(sorted({n for n in literals if type(n) is int and n >= 0}))
