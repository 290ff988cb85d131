"""The calls of a live object: a list of calls, one example, or a DataLoader.

Takes what the user passes with a model or function. Returns a list whose entries are
tuples of positional arguments or dicts of keyword arguments, as a factory returns it.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torchproof import torch_private
from torchproof.records import Keywords, UserError

BATCHES = 4  # of a DataLoader
_FORMS = (
    "a list of calls, each a tuple of positional arguments or a dict of keyword"
    " arguments: [(x,)]"
)


def calls_of(fn: Any, calls: Any) -> list[Any]:
    """The calls that the user means; raises `UserError` if that is not clear."""
    import torch

    if isinstance(calls, torch.utils.data.DataLoader):
        return _from_loader(fn, calls)
    if isinstance(calls, torch.Tensor):
        return [(calls,)]
    if isinstance(calls, Mapping):
        return [_keywords(calls)]
    if isinstance(calls, (str, bytes)) or not isinstance(calls, Iterable):
        raise UserError(f"calls is a {type(calls).__name__}: pass {_FORMS}")
    if not isinstance(calls, (list, tuple)):
        raise UserError(
            f"calls is a {type(calls).__name__}, which can be read only once: pass"
            f" {_FORMS}"
        )
    if not calls:
        raise UserError(f"calls is empty: there is nothing to run; pass {_FORMS}")
    return _listed(calls)


def _listed(calls: list[Any] | tuple[Any, ...]) -> list[Any]:
    import torch

    if isinstance(calls, tuple) and not isinstance(calls[0], (tuple, Mapping)):
        return [calls]  # the arguments of one call, as torch.export takes them
    if len(calls) == 1 and isinstance(calls[0], torch.Tensor):
        return [(calls[0],)]
    for index, call in enumerate(calls):
        if not isinstance(call, (tuple, Mapping)):
            several = "[(a,), (b,)] for two calls, [(a, b)] for one with two arguments"
            hint = f"write {several}" if isinstance(call, torch.Tensor) else ""
            raise UserError(
                f"call {index} is a {type(call).__name__}; it must be a tuple of"
                " positional arguments or a dict of keyword arguments"
                + (f": {hint}" if hint else "")
            )
    return [_keywords(c) if isinstance(c, Mapping) else tuple(c) for c in calls]


def _keywords(call: Mapping[Any, Any]) -> Keywords:
    """A dict of keyword arguments; tokenizers return another mapping."""
    for name in call:
        if not isinstance(name, str):
            raise UserError(
                f"a call has the key {name!r}: its keys must be names of arguments"
            )
    return dict(call)


# -- batches ---------------------------------------------------------------------------


def _from_loader(fn: Any, loader: Any) -> list[Any]:
    """The first batches of a loader, as calls on the device of the model."""
    import torch

    with preserve_random_state():
        try:
            batches = list(itertools.islice(loader, BATCHES))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"reading the DataLoader failed: {reason}") from error
    if not batches:
        raise UserError("the DataLoader is empty: there is no batch to run")
    calls = [_from_batch(fn, batch) for batch in batches]
    device = _device_of(fn)

    def move(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf

    return [torch_private.trees.mapped(call, move, objects=True) for call in calls]


def _from_batch(fn: Any, batch: Any) -> Any:
    """Keyword arguments of a dict; of a sequence, as many as have no default."""
    if isinstance(batch, Mapping):
        return _keywords(batch)
    if isinstance(batch, (list, tuple)):
        return tuple(batch[: _required(fn, len(batch))])
    return (batch,)


def _required(fn: Any, most: int) -> int:
    """How many positional arguments a function needs; all of them if it takes any."""
    import torch

    function: Callable[..., Any] = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable of C
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return most
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    return max(1, sum(p.default is p.empty for p in positional))


_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def _device_of(fn: Any) -> Any:
    import torch

    parameters = fn.parameters() if isinstance(fn, torch.nn.Module) else iter(())
    first = next(parameters, None)
    return torch.get_default_device() if first is None else first.device


@contextlib.contextmanager
def preserve_random_state() -> Iterator[None]:
    """Gives all random generators their state back at the end."""
    import numpy
    import torch

    python, arrays = random.getstate(), numpy.random.get_state()
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if on_gpu else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
