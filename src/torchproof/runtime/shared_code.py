"""Which models may use one another's compiled code, also after a model is gone.

Dynamo stores compiled code with the function that it was compiled from, and uses it for
every call whose guards hold and whose backend is equal. So models of one class share
code if their backends are equal: if both have the same `key_of`. Guards and key
together have everything that the code depends on. The backend of a deleted model is
kept with its code for the next model with the same key.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchproof.runtime import compile_job
from torchproof.runtime.method_replacement import MethodReplacement, Options
from torchproof.torch_private import backends, frames

if TYPE_CHECKING:
    from torchproof.runtime.interfaces import Engine, GraphCompiler

_MOST_LEFT = 16  # backends of deleted models
_MOST_ANSWERS = 8  # compiled code that they keep of each function
# The code of these modes does not depend on the addresses of parameters.
_MODES = (None, "default", "max-autotune-no-cudagraphs")
_FORMS = ("full", "regional", "core")
_ALIGNED = (
    16  # bytes: Inductor checks the alignment of parameters only when it compiles
)

# These are changed by single operations of a dict or list: the garbage collector may
# delete a model, and call `leave`, at any time.
_left: dict[int, Backend] = {}  # of deleted models, by id, oldest first
_all: list[Backend] = []
_unused: list[Backend] = []  # without code: they are used again
_drops = [0]  # how often code was deleted


@dataclass(frozen=True, eq=False)
class StoredCode:
    """Code that was compiled for a function, and its number of graphs."""

    code: CodeType
    answer: Any
    graphs: int


class Backend(list[Hashable]):
    """What Dynamo takes for the backend of all regions of one model.

    Models with equal backends share compiled code: those with the same `key`. Dynamo
    compares backends at each call that finds code of another model. It is a list of its
    key because lists compare without Python code, in which another thread could delete
    what Dynamo is about to look at.
    """

    def __init__(self) -> None:
        super().__init__([object()])
        self._key: Hashable = None
        self.compiler: GraphCompiler | None = None  # of its model; None if unused
        self.stored: list[StoredCode] = []
        self.is_live = False
        _all.append(self)  # for ever: Dynamo keeps pointers to it

    @classmethod
    def of(cls, compiler: GraphCompiler) -> Backend:
        """The backend for a model."""
        free_unused()
        try:
            backend = _unused.pop()  # of a deleted model, without code
        except IndexError:
            backend = cls()
        backend.compiler = compiler
        backend.is_live = True
        return backend

    @property
    def key(self) -> Hashable:
        return self._key

    @key.setter
    def key(self, key: Hashable) -> None:
        self._key = key
        self[:] = [object() if key is None else key]

    __repr__ = object.__repr__

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(Backend)

    def leave(self) -> None:
        """Its model was deleted. A backward pass of it may still be compiled."""
        self.is_live = False
        leave(self)

    def __call__(self, gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        job = compile_job.current()
        # A background compilation may go on while another model has this backend.
        compiler = (job and job.compiler) or self.compiler
        assert compiler is not None
        return compiler(gm, inputs)


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
    if not any(backend.stored for backend in _all):
        return False  # the key needs the compiler, which takes long to import
    key = key_of(part, options)
    return key is not None and any(b.key == key and b.stored for b in _all)


def of_others(backend: Backend) -> list[StoredCode]:
    """The code of other models, alive or deleted, that this backend's model may use."""
    key = backend.key
    if key is None:
        return []
    others = (each for each in list(_all) if each.key == key and each is not backend)
    return [item for each in others for item in each.stored]


def owner_of(tensors: list[Tensor], default: Engine) -> Engine:
    """The engine of the live model that has one of these parameters."""
    tensor_ids = {id(tensor) for tensor in tensors}
    compilers = [each.compiler for each in list(_all) if each.is_live]
    for engine in (default, *(each.engine for each in compilers if each is not None)):
        model = engine.find_model() if tensor_ids else None
        if model and not tensor_ids.isdisjoint(map(id, model.parameters())):
            return engine
    return default


def leave(backend: Backend) -> None:
    """Keeps the code of a deleted model for others with its key.

    The garbage collector may call this while Dynamo checks guards of this code. So code
    that others may use is freed later, by `free_unused`.
    """
    if backend.key is None or not backend.stored:
        _discard(backend)
    else:
        _left[id(backend)] = backend


def free_unused() -> None:
    """Frees code that deleted models left, except the latest and that of live models.

    Of each function, the code that was used last is kept.
    """
    live = {each.key for each in list(_all) if each.is_live}
    left = list(_left.values())
    failed = [each for each in left if each.key is None]
    for backend in failed + [b for b in left if b.key not in live][:-_MOST_LEFT]:
        _forget(backend)
    _keep_last_used()


def _keep_last_used() -> None:
    """Frees what deleted models left, except a few for each function."""
    entries = [(each, item) for each in list(_left.values()) for item in each.stored]
    # By id: equal code objects may be different functions of Dynamo.
    codes = {id(item.code): item.code for _, item in entries}
    ranks = {number: frames.ranks_by_last_use(code) for number, code in codes.items()}
    entries.sort(key=lambda pair: ranks[id(pair[1].code)](pair[1].answer))
    counts = Counter[tuple[Hashable, int]]()
    for backend, item in entries:
        place = (backend.key, id(item.code))
        counts[place] += 1
        if counts[place] > _MOST_ANSWERS:
            with contextlib.suppress(ValueError):  # another thread was faster
                backend.stored.remove(item)
                _invalidate(item)
            if not backend.stored:
                _forget(backend)


def _forget(backend: Backend) -> None:
    if _left.pop(id(backend), None) is not None:
        _discard(backend)


def _discard(backend: Backend) -> None:
    drop(backend)
    backend.key = None
    backend.compiler = None
    _unused.append(backend)


def drop(backend: Backend) -> None:
    """Frees the code of a backend."""
    while backend.stored:
        _invalidate(backend.stored.pop(0))


def drops() -> int:
    """How often code was deleted: a lookup misses code if it meets a deletion."""
    return _drops[0]


def _invalidate(item: StoredCode) -> None:
    frames.invalidate(item.answer, "its model was deleted")
    _drops[0] += 1
