"""Models of one class share compiled code, as torch shares it.

Dynamo stores compiled code with the function that it was compiled from, and uses it for
every call whose guards hold and whose backend is the same. So models with the same
`key_of` have the same `Backend`. Guards and key together have everything that the code
depends on. The code stays when a model is deleted, for the next one with this key.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchproof.process import forks
from torchproof.runtime import compile_job
from torchproof.runtime.method_replacement import MethodReplacement, Options
from torchproof.torch_private import backends, frames

if TYPE_CHECKING:
    from torchproof.runtime.interfaces import Engine

_MOST_LEFT = 16  # backends without a model
_MOST_ANSWERS = 8  # compiled code of a function, for each model
# The code of these modes does not depend on the addresses of parameters.
_MODES = (None, "default", "max-autotune-no-cudagraphs")
_FORMS = ("full", "regional", "core")
_ALIGNED = (
    16  # bytes: Inductor checks the alignment of parameters only when it compiles
)


@dataclass(frozen=True, eq=False)
class StoredCode:
    """Code that was compiled for a function; `origin` stands for its engine."""

    code: CodeType
    answer: Any
    graphs: int
    origin: object


class Backend:
    """What Dynamo takes for the backend of all models with one key.

    The running compilation knows the model whose graph it is.
    """

    def __init__(self, key: Hashable) -> None:
        self.key = key  # None: of one model
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self.stored: list[StoredCode] = []

    def __call__(self, gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        job = compile_job.current()
        assert job is not None and job.compiler is not None
        compiled: Callable[..., Any] = job.compiler(gm, inputs)
        return compiled

    def drop_code(self) -> None:
        while self.stored:
            _invalidate(self.stored.pop(0))


# These are changed by single operations of a dict or list: the garbage collector may
# delete a model, and call `leave`, at any time. Backends are never deleted: Dynamo
# keeps pointers to them.
_shared: dict[Hashable, Backend] = {}
_unused: list[Backend] = []  # without code: they are used again
_drops = [0]  # how often code was deleted


def backend_of(engine: Engine, key: Hashable) -> Backend:
    """The backend of a model: that of all with its key, its own without one."""
    if key is None:
        backend = _unused.pop() if _unused else Backend(None)
    else:
        backend = _shared.pop(key) if key in _shared else Backend(key)
        _shared[key] = backend  # the latest one last
    backend.engines.add(engine)
    return backend


def send_others_away(engine: Engine, backend: Backend) -> None:
    """Leaves a backend to one model; the others compile again with a new one.

    Not the other way round: Dynamo stores what it compiles now with the backend that it
    found when it began.
    """
    key, backend.key = backend.key, None
    _shared.pop(key, None)
    others = [each for each in forks.alive(backend.engines) if each is not engine]
    for other in others:
        backend.engines.discard(other)
        other.use_backend(backend_of(other, key))


def leave(engine: Engine, backend: Backend) -> None:
    """The model was deleted.

    The garbage collector may call this while Dynamo checks guards of shared code. So
    that is freed later, by `free_unused`.
    """
    backend.engines.discard(engine)
    if backend.key is None:
        backend.drop_code()
        _unused.append(backend)


def free_unused() -> None:
    """Frees code that no model needs: of keys without a model, except the latest.

    Of each function, what was used last is kept.
    """
    without_model = [b for b in list(_shared.values()) if not b.engines]
    for backend in without_model[:-_MOST_LEFT]:
        if _shared.pop(backend.key, None) is not None:
            backend.drop_code()  # the backend itself may still be pointed to
            backend.key = None
            _unused.append(backend)
    for backend in list(_shared.values()):
        _keep_last_used(backend)


def _keep_last_used(backend: Backend) -> None:
    most = _MOST_ANSWERS * max(1, len(backend.engines))
    # By id: equal code objects may be different functions of Dynamo.
    counts = Counter(id(item.code) for item in backend.stored)
    for number in [number for number, count in counts.items() if count > most]:
        items = [item for item in backend.stored if id(item.code) == number]
        rank = frames.ranks_by_last_use(items[0].code)
        for item in sorted(items, key=lambda item: rank(item.answer))[most:]:
            with contextlib.suppress(ValueError):  # another thread was faster
                backend.stored.remove(item)
                _invalidate(item)


def key_of(part: MethodReplacement, options: Options) -> Hashable:
    """Models with the same key may share code; None for a model that shares none."""
    arguments = options.compile_with
    backend = arguments.get("backend", "inductor")
    mode = arguments.get("mode")
    strategy = options.requested
    if part.owner is None or part.plain is not None or options.recipe is not None:
        return None
    if arguments.keys() & {"isolate_recompiles", "shapes_spec", "name"}:
        return None
    if options.on_event is not None:  # each model has to report what is compiled
        return None
    if strategy.form not in _FORMS or mode not in _MODES or arguments.get("options"):
        return None
    if not isinstance(backend, str) or backends.code_depends_on_addresses():
        return None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return None  # ranks vote on each compilation, and have to compile the same
    aliases = _aliases(part.owner)
    if aliases is None:
        return None
    return (
        type(part.owner),
        strategy.name,
        backend,
        mode,
        arguments.get("dynamic"),
        options.fullgraph,
        options.deadline_s,  # of a backward pass that is compiled when it first runs
        backends.settings_hash(),
        aliases,
    )


def _aliases(model: nn.Module) -> tuple[tuple[str, str], ...] | None:
    """The names of tensors and modules that the model has twice; None if not known.

    Compiled code depends on which of them are the same, and on views, which Dynamo
    does not guard. It does not guard a replaced `_call_impl` of one module either.
    """
    names: dict[int, str] = {}
    storages: set[int] = set()
    twice = []
    modules = [("", model)]
    while modules:
        path, module = modules.pop()
        if "_call_impl" in module.__dict__ or isinstance(
            module, torch.jit.ScriptModule
        ):
            return None
        for name, value in _parts(module):
            where = f"{path}.{name}"
            first = names.setdefault(id(value), where)
            if first != where:
                twice.append((where, first))
            elif isinstance(value, nn.Module):
                modules.append((where, value))
            elif not _is_separate(value, storages):
                return None
    return tuple(twice)


def _parts(module: nn.Module) -> Iterator[tuple[str, Any]]:
    fields = module.__dict__
    for group in ("_parameters", "_buffers", "_modules"):
        yield from ((k, v) for k, v in fields[group].items() if v is not None)
    yield from ((k, v) for k, v in fields.items() if isinstance(v, Tensor))


def _is_separate(tensor: Tensor, storages: set[int]) -> bool:
    """Whether a tensor is plain, aligned and shares no memory with earlier ones."""
    if type(tensor) not in (Tensor, nn.Parameter):
        return False
    try:
        address = tensor.untyped_storage().data_ptr()
        aligned = not tensor.is_cuda or tensor.data_ptr() % _ALIGNED == 0
    except (RuntimeError, NotImplementedError):  # as for sparse tensors
        return False
    is_new = address == 0 or address not in storages  # 0: it has no memory
    storages.add(address)
    return is_new and aligned


def exists(part: MethodReplacement, options: Options) -> bool:
    """Whether there is code that the model may use, if its guards hold."""
    if not any(backend.stored for backend in list(_shared.values())):
        return False  # the key needs the compiler, which takes long to import
    backend = _shared.get(key_of(part, options))
    return backend is not None and bool(backend.stored)


def owner_of(tensors: list[Tensor], backend: Backend | None) -> Engine | None:
    """The engine of the live model that has one of these parameters."""
    tensor_ids = {id(tensor) for tensor in tensors}
    if backend is None or not tensor_ids:
        return None
    for engine in forks.alive(backend.engines):
        model = engine.find_model()
        if model and not tensor_ids.isdisjoint(map(id, model.parameters())):
            return engine
    return None


def drops() -> int:
    """How often code was deleted: a lookup misses code if it meets a deletion."""
    return _drops[0]


def _invalidate(item: StoredCode) -> None:
    frames.invalidate(item.answer, "no model needs it")
    _drops[0] += 1
