"""Which models may use one another's compiled code, also after a model is gone.

Dynamo stores compiled code with the function that it was compiled from, and uses it for
every call whose guards hold and whose backend is equal. So models of one class share
code if their backends are equal: if both have the same `key_of`. The backend of a
deleted model is kept with its code, and the next model with the same key takes it over.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch

from torchproof.runtime.method_replacement import MethodReplacement, Options
from torchproof.torch_private import backends, frames

if TYPE_CHECKING:
    from torchproof.runtime.backend import Backend

_MOST_LEFT = 16  # backends of deleted models
_MOST_ANSWERS = 8  # compiled code that each of them keeps
# The code of these modes does not depend on the addresses of parameters.
_MODES = (None, "default", "max-autotune-no-cudagraphs")
_FORMS = ("full", "regional", "core")

# Both are changed by single operations of a dict or list: the garbage collector may
# delete a model, and call `leave`, at any time.
_left: dict[int, Backend] = {}  # of deleted models, by id, oldest first
_all: list[Backend] = []
_unused: list[Backend] = []  # without code: they are used again


def key_of(part: MethodReplacement, options: Options) -> Hashable:
    """Models with the same key may share code; None for a model that shares none."""
    arguments = options.compile_with
    backend = arguments.get("backend", "inductor")
    mode = arguments.get("mode")
    strategy = options.requested
    if part.owner is None or part.plain is not None or options.recipe is not None:
        return None
    if options.on_event is not None:  # each model has to report what is compiled
        return None
    if strategy.form not in _FORMS or mode not in _MODES or arguments.get("options"):
        return None
    if not isinstance(backend, str) or backends.code_depends_on_addresses():
        return None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return None  # ranks vote on each compilation, and have to compile the same
    return type(part.owner), strategy.name, backend, mode, arguments.get("dynamic")


def exists(part: MethodReplacement, options: Options) -> bool:
    """Whether there is code that the model may use, if its guards hold."""
    if not any(backend.answers for backend in _all):
        return False  # the key needs the compiler, which takes long to import
    key = key_of(part, options)
    return key is not None and any(b.key == key and b.answers for b in _all)


def register(backend: Backend) -> None:
    """Keeps a new backend for ever: Dynamo keeps pointers to it."""
    _all.append(backend)


def inherited(key: Hashable) -> Backend | None:
    """The backend that a deleted model with this key has left; else an unused one."""
    for number, backend in list(_left.items()) if key is not None else ():
        if backend.key == key and _left.pop(number, None) is not None:
            return backend
    try:
        return _unused.pop()
    except IndexError:
        return None


def leave(backend: Backend) -> None:
    """Keeps the backend of a deleted model for the next one with its key."""
    if backend.key is None or not backend.answers:
        _discard(backend)
        return
    drop(backend, keep=_MOST_ANSWERS)
    _left[id(backend)] = backend
    for number in list(_left)[:-_MOST_LEFT]:
        oldest = _left.pop(number, None)
        if oldest is not None:
            _discard(oldest)


def _discard(backend: Backend) -> None:
    drop(backend)
    backend.key = None
    _unused.append(backend)


def drop(backend: Backend, *, keep: int = 0) -> None:
    """Frees the code of a backend except the latest."""
    while len(backend.answers) > keep:
        frames.invalidate(backend.answers.pop(0), "its model was deleted")
