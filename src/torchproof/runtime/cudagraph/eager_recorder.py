"""One eager run of a step, watched operation by operation.

Out goes what has to be known before the step may be recorded: which memory it writes
that was there before, with a copy from before; which operations make the host wait
for the device; and from which Python functions its kernels come.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from torchproof.records import whose
from torchproof.runtime.cudagraph.capture import WAIT
from torchproof.runtime.cudagraph.graph_status import Stop, StopKind
from torchproof.runtime.cudagraph.reachable_state import has_plain_memory
from torchproof.runtime.tensors.storages import HOST, Key, Region, free_bytes, key_of
from torchproof.torch_private import TorchDispatchMode, mutated_arguments

_SHARE = 0.25  # of free memory that one copy may take on the device
_PRECAUTION_BYTES = 64 << 20
_MOST_STOPS = 20
# What makes the host wait, in the words of the code that calls it.
_WAITS = {
    "_local_scalar_dense": "a number is read on the host: .item(), float(), bool(), if",
    "nonzero": "nonzero(): its result has as many rows as the data says",
    "masked_select": "masked_select() or printing: the size depends on the data",
    "_unique2": "unique(): the size of its result depends on the data",
    "unique_dim": "unique(): the size of its result depends on the data",
    "unique_consecutive": "unique_consecutive(): the size depends on the data",
    "bincount": "bincount(): the size of its result depends on the data",
    "equal": "torch.equal(): the answer is a Python bool",
}
_HOST_NUMBER = (
    "a CPU tensor is read as a number, and a replay does not read it again: move it to"
    " the device"
)
_COPIES = ("copy_", "_to_copy", "set_")
# Kernels that fusing does not make faster.
_OWN_KERNELS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "embedding", "index")


@dataclass
class Origin:
    """What was computed below one Python function, outside of everything inner."""

    operations: int = 0
    bytes: int = 0


class EagerRecorder(TorchDispatchMode):
    """Watches what runs under it; `device` is where the step computes.

    With `traces` it also notes the Python functions that each operation comes from.
    """

    def __init__(self, device: torch.device, *, traces: bool = False) -> None:
        super().__init__()
        self.device, self.traces = device, traces
        self.saved: dict[Key, Region] = {}
        self.stops: list[Stop] = []
        self.stacks: list[tuple[tuple[CodeType, ...], str, int]] = []
        self._born: set[Key] = set()
        self._given: set[Key] = set()  # to operations
        self._precautions: set[Key] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for position, name in mutated_arguments(func):
            value = args[position] if position < len(args) else kwargs.get(name)
            for tensor in _tensors(value):
                self._save(tensor)
        if (why := self._waits(func, args, kwargs)) is not None:
            self._stop(func, why)
        result = func(*args, **kwargs)
        given = {key_of(each) for each in _tensors((args, kwargs)) if _plain(each)}
        made = [each for each in _tensors(result) if _plain(each)]
        self._born |= {key_of(each) for each in made} - given
        self._given |= given
        if self.traces and made:
            size = sum(each.numel() * each.itemsize for each in made)
            self.stacks.append((_codes(), func.overloadpacket.__name__, size))
        return result

    def beware(self, tensors: Iterable[Tensor]) -> None:
        """Saves these though nothing may say that they are written.

        Batch norms write their statistics, and kernels of users what they like.
        """
        for tensor in tensors:
            if tensor.numel() * tensor.itemsize <= _PRECAUTION_BYTES:
                self._save(tensor)
        self._precautions = set(self.saved)

    def settle(self) -> None:
        """Forgets what was saved as a precaution and has not changed."""
        for key in self._precautions:
            if not self.saved[key].differs():
                del self.saved[key]
        self._precautions = set()

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """These need not be put back: nobody else has them."""
        for tensor in tensors:
            self.saved.pop(key_of(tensor), None)

    def wrote(self, tensor: Tensor) -> bool:
        return _plain(tensor) and key_of(tensor) in self.saved

    def read(self, tensor: Tensor) -> bool:
        """Whether an operation got it."""
        return _plain(tensor) and key_of(tensor) in self._given

    def _save(self, tensor: Tensor) -> None:
        """A copy of the whole storage, once, before the first write into it.

        What the step itself has made needs none.
        """
        if not _plain(tensor) or not tensor.numel():
            return
        key = key_of(tensor)
        if key in self.saved or key in self._born:
            return
        if not self._here(tensor):
            told = "the step writes into memory of the host, which a replay does not"
            self.stops.append(stop_here("python", told))
        live = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        live.set_(tensor.untyped_storage())
        fits = live.numel() <= _SHARE * free_bytes(live.device)
        copy = live.clone() if fits else live.to(HOST, copy=True)
        self.saved[key] = Region(live, bulk=False, copy=copy)

    def _waits(self, func: Any, args: Any, kwargs: Any) -> str | None:
        name = func.overloadpacket.__name__
        tensors = list(_tensors((args, kwargs)))
        from_host = name == "_to_copy" and tensors
        if not from_host and not any(self._here(each) for each in tensors):
            return None
        if name in _WAITS:
            return _WAITS[name]
        if self.device.type != "cpu" and any(map(self._is_host_number, tensors)):
            return _HOST_NUMBER
        if name in _COPIES:
            return self._waiting_copy(name, args, kwargs)
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            return "repeat_interleave() without output_size: the data says how many"
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = [each for each in args[1] if each is not None]
            if any(each.dtype in (torch.bool, torch.uint8) for each in masks):
                return "a mask as an index: the size depends on the data"
        return None

    def _is_host_number(self, tensor: Tensor) -> bool:
        """Whether a kernel gets its value, which a replay does not read again."""
        outside = tensor.device.type == "cpu" and not tensor.dim() and _plain(tensor)
        return outside and key_of(tensor) not in self._born

    def _waiting_copy(self, name: str, args: Any, kwargs: Any) -> str | None:
        if name == "copy_":
            target, source = args[0], args[1]
            waits = not (len(args) > 2 and args[2]) and not kwargs.get("non_blocking")
        else:
            source = args[0]
            target = kwargs.get("device") or source.device
            waits = not kwargs.get("non_blocking")
        to = target.device if isinstance(target, Tensor) else torch.device(target)
        if not isinstance(source, Tensor) or source.device.type == to.type:
            return None
        if to.type == "cpu":
            return "a tensor is copied to the host: .cpu(), .numpy(), .tolist()"
        if source.dim() == 0 and name == "copy_":
            return None
        if waits or not source.is_pinned():
            return "a tensor is copied from the host: make it before, on the device"
        return None

    def _here(self, tensor: Tensor) -> bool:
        return tensor.device.type == self.device.type

    def hear(self, warning: str) -> None:
        """What torch warns of and this does not see: printing a tensor, for one."""
        if WAIT in warning:
            why = "the host waits for the device: printing, .cpu(), synchronize()"
            stop = stop_here("host_sync", why)
        else:
            why = (
                "a result of an earlier step is still held, and its history binds the"
                " gradients to another stream: detach() it, or let go of it"
            )
            stop = stop_here("capture", why)
        if (stop.file, stop.line) not in {(s.file, s.line) for s in self.stops}:
            self.stops.append(stop)

    def _stop(self, func: Any, why: str) -> None:
        if len(self.stops) < _MOST_STOPS:
            self.stops.append(stop_here("host_sync", why, func.name()))

    # -- where kernels come from ---------------------------------------------------

    def origins(self, above: frozenset[CodeType]) -> dict[CodeType, Origin]:
        """Operations by the outermost function that is not one of those `above`.

        Only functions outside of torch count: they can be compiled on their own.
        """
        found: dict[CodeType, Origin] = {}
        for codes, name, size in self.stacks:
            inner = [code for code in codes if code not in above]
            owner = next((c for c in inner if _can_be_compiled(c)), None)
            if owner is None or name in _OWN_KERNELS:
                continue
            origin = found.setdefault(owner, Origin())
            origin.operations += 1
            origin.bytes += size
        return found


def stop_here(kind: StopKind, reason: str, operation: str | None = None) -> Stop:
    """A stop at the innermost line of user code on the stack, else of a library."""
    library: tuple[str, int, str] | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        owner = whose(code.co_filename)
        here = code.co_filename, frame.f_lineno, code.co_qualname
        if owner == "user":
            within = None if library is None else f"{library[0]}:{library[1]}"
            return Stop(kind, reason, operation, *here, within)
        if owner == "library" and library is None:
            library = here
        frame = frame.f_back
    return Stop(kind, reason, operation, *(library or ()))


def _codes() -> tuple[CodeType, ...]:
    """The functions on the stack, the outermost first."""
    found, frame = [], sys._getframe(2)
    while frame is not None:
        found.append(frame.f_code)
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(reversed(found))


def _can_be_compiled(code: CodeType) -> bool:
    return whose(code.co_filename) in ("user", "library")


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type != "meta" and has_plain_memory(tensor)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
