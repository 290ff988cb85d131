"""Watches one eager run of a step, operation by operation.

Collects what the recorder must know before a capture: which existing memory the step
writes, with a copy of its old content, and which operations synchronise with the
device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from torchproof.records import whose
from torchproof.runtime.cudagraph.capture import WAIT
from torchproof.runtime.cudagraph.executed_code import STORAGE_READS
from torchproof.runtime.cudagraph.graph_status import Stop, StopKind, Stopped
from torchproof.runtime.cudagraph.host_tensors import HostTensors
from torchproof.runtime.cudagraph.reachable_state import has_plain_memory
from torchproof.runtime.tensors.storages import Copies, Key, Region, key_of
from torchproof.torch_private import EagerDispatchMode, trees, written_arguments

_PRECAUTION_BYTES = 64 << 20
_MOST_STOPS = 20
# Operations that synchronise with the device, with the user code that causes them.
_WAITS = {
    "_local_scalar_dense": "the host reads a number: .item(), float(), bool(), if",
    "nonzero": "nonzero(): the size of its result depends on the data",
    "masked_select": "masked_select() or printing: the size depends on the data",
    "_unique2": "unique(): the size of its result depends on the data",
    "unique_dim": "unique(): the size of its result depends on the data",
    "unique_consecutive": "unique_consecutive(): the size depends on the data",
    "bincount": "bincount(): the size of its result depends on the data",
    "equal": "torch.equal(): its result is a Python bool",
}
_HOST_NUMBER = (
    "the step reads a number from CPU memory that may differ at the next call, which a"
    " replay does not read again: keep it on the device"
)
_COPIES = ("copy_", "_to_copy", "set_")
_RESTRIDES = ("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter")
_MASKED = ("index", "index_put", "index_put_", "_index_put_impl_")


class EagerRecorder(EagerDispatchMode):
    """Watches the operations inside its context; `device` is the step's device.

    `outside` are the tensors that exist before the step, and `scratch` those whose
    content need not be saved.
    """

    def __init__(
        self,
        device: torch.device,
        outside: Iterable[Tensor] = (),
        *,
        scratch: Iterable[Tensor] = (),
    ) -> None:
        super().__init__()
        self.device = device
        self._scratch = {key_of(each) for each in scratch}
        self._scratch_written: set[Key] = set()
        self.uses_scratch = False  # whether an operation had it as an input
        self._host_tensors = HostTensors(outside)
        self.saved: dict[Key, Region] = {}
        self.stops: list[Stop] = []
        # Storages that the step looks at directly, and those of which it makes views
        # with strides of its own.
        self.storages_read: set[Key] = set()
        self.storages_restrided: set[Key] = set()
        self._created: set[Key] = set()
        self._inputs: set[Key] = set()
        self._precautions: set[Key] = set()
        self._copies = Copies()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self._host_tensors.meet(args)
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in _RESTRIDES:
            self._note_strides(args, kwargs)
        taken = _tensors(*args, *kwargs.values())
        written = _tensors(*written_arguments(func, args, kwargs))
        for tensor in written:
            self._save(tensor)
        if (why := self._waits(name, taken, args, kwargs)) is not None:
            self._stop(func, why)
        result = func(*args, **kwargs)
        inputs = set(_keys(taken))
        outputs = _tensors(result)
        self._host_tensors.note(func, args, taken, [*outputs, *written])
        # The memory of scratch that was freed may belong to another tensor.
        self.uses_scratch |= bool((inputs & self._scratch) - self._created)
        self._created.update(set(_keys(outputs)) - inputs)
        self._inputs |= inputs
        return result

    def save_as_precaution(self, tensors: Iterable[Tensor]) -> None:
        """Saves tensors that may be written without a declaration in the schema.

        Batch norm writes its statistics, and custom kernels may write anything.
        """
        for tensor in tensors:
            if tensor.numel() * tensor.itemsize <= _PRECAUTION_BYTES:
                self._save(tensor)
        self._precautions = set(self.saved)

    def save(self, tensors: Iterable[Tensor]) -> None:
        """Saves tensors that the step is known to write."""
        for tensor in tensors:
            self._save(tensor)

    def drop_precautions(self) -> None:
        """Drops the precautionary copies of tensors that did not change."""
        for key in self._precautions:
            if not self.saved[key].differs():
                del self.saved[key]
        self._precautions = set()

    def wrote(self, tensor: Tensor) -> bool:
        if not _plain(tensor):
            return False
        key = key_of(tensor)
        return key in self.saved or key in self._scratch_written

    def read(self, tensor: Tensor) -> bool:
        """Whether the tensor was an input of an operation."""
        return _plain(tensor) and key_of(tensor) in self._inputs

    def _save(self, tensor: Tensor) -> None:
        """Copies the whole storage before the first write to it.

        Memory that the step itself has allocated needs no copy.
        """
        if not _plain(tensor) or not tensor.numel():
            return
        key = key_of(tensor)
        if key in self.saved or key in self._created:
            # Written for certain, even if the content is the same this time.
            self._precautions.discard(key)
            return
        if key in self._scratch:
            self._scratch_written.add(key)
            return
        if not self._on_device(tensor):
            reason = "the step writes to host memory, which a replay does not"
            self.stops.append(stop_here("python", reason))
        live = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        live.set_(tensor.untyped_storage())
        self.saved[key] = Region(live, bulk=False, copy=self._copy(live))

    def _copy(self, live: Tensor) -> Tensor:
        """A copy of memory before it is written; raises `Stopped` if it does not fit.

        The stop is also noted, because the step may catch any error.
        """
        copy = self._copies.make(live)
        if copy is None:
            saved = sum(each.live.numel() for each in self.saved.values())
            reason = (
                f"the step writes to {(saved + live.numel()) / 1e9:.3g} GB or more, and"
                " a copy to undo it does not fit into memory of the host or the device:"
                " free memory, or train a smaller model"
            )
            self.stops.append(stop_here("memory", reason))
            raise Stopped(self.stops[-1])
        return copy

    def _waits(
        self, name: str, taken: list[Tensor], args: Any, kwargs: Any
    ) -> str | None:
        kind = self.device.type
        on_host = [each for each in taken if each.device.type != kind]
        on_device = len(on_host) < len(taken)
        varying = [each for each in on_host if self._host_tensors.varies(each)]
        why = _why_data_dependent(name, args, kwargs)
        if why is not None and (on_device or varying):
            return why if on_device else _HOST_NUMBER
        if on_device and varying and not all(each.dim() for each in varying):
            return _HOST_NUMBER
        if name in _COPIES and (on_device or name == "_to_copy"):
            return self._waiting_copy(name, args, kwargs)
        return None

    def varies(self, tensor: Tensor) -> bool:
        """Whether host memory may have another content at the next call."""
        return not self._on_device(tensor) and self._host_tensors.varies(tensor)

    def _note_strides(self, args: Any, kwargs: Any) -> None:
        """Handles `as_strided`, which may show any element of a storage."""
        for key in _keys(_tensors(args[0])):
            self.storages_restrided.add(key)
            if len(args) > 3 or kwargs.get("storage_offset") is not None:
                self.storages_read.add(key)

    def handle_read(self, tensor: Tensor, method: str) -> None:
        """Handles methods of tensors that are no operations."""
        if method in STORAGE_READS:
            self.storages_read.update(_keys([tensor]))
        elif self.varies(tensor) and len(self.stops) < _MOST_STOPS:
            self.stops.append(stop_here("host_sync", _HOST_NUMBER))

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
            return "the step copies a tensor to the host: .cpu(), .numpy(), .tolist()"
        if source.dim() == 0 and name == "copy_":
            return None
        if waits or not source.is_pinned():
            return (
                "the step copies a tensor from the host: create it on the device,"
                " before the step"
            )
        return None

    def _on_device(self, tensor: Tensor) -> bool:
        return tensor.device.type == self.device.type

    def handle_warning(self, warning: str) -> None:
        """Handles torch warnings about synchronisation that no operation shows."""
        if WAIT in warning:
            why = "the step synchronises with the device: print, .cpu(), synchronize()"
            stop = stop_here("host_sync", why)
        else:
            why = (
                "a result of an earlier step is still referenced, and its autograd"
                " history binds the gradients to another stream: detach() or delete it"
            )
            stop = stop_here("capture", why)
        if (stop.file, stop.line) not in {(s.file, s.line) for s in self.stops}:
            self.stops.append(stop)

    def _stop(self, func: Any, why: str) -> None:
        if len(self.stops) < _MOST_STOPS:
            self.stops.append(stop_here("host_sync", why, func.name()))


def _why_data_dependent(name: str, args: Any, kwargs: Any) -> str | None:
    """Why Python needs the content of the tensors, for their number or a size."""
    if name in _WAITS:
        return _WAITS[name]
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        return "repeat_interleave() without output_size: the size depends on the data"
    if name in _MASKED and not _is_masked_fill(name, args, kwargs):
        masks = [each for each in args[1] if each is not None]
        if any(each.dtype in (torch.bool, torch.uint8) for each in masks):
            return "a boolean mask as an index: the size depends on the data"
    return None


def _is_masked_fill(name: str, args: Any, kwargs: Any) -> bool:
    """Whether torch writes one number, `x[mask] = 0`, without counting the mask."""
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate")
    if name == "index" or accumulates:
        return False
    value = args[2]
    is_number = value.device.type == "cpu" and not value.dim()
    return is_number and sum(each is not None for each in args[1]) == 1


def stop_here(kind: StopKind, reason: str, operation: str | None = None) -> Stop:
    """A stop at the innermost user frame of the stack, else at a library frame."""
    library: tuple[str, int, str] | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        owner = whose(code.co_filename)
        location = code.co_filename, frame.f_lineno, code.co_qualname
        if owner == "user":
            within = None if library is None else f"{library[0]}:{library[1]}"
            return Stop(kind, reason, operation, *location, within)
        if owner == "library" and library is None:
            library = location
        frame = frame.f_back
    return Stop(kind, reason, operation, *(library or ()))


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type != "meta" and has_plain_memory(tensor)


# Executions ignore what these helpers run, which may be user code: see `owner_of`.


def _tensors(*values: Any) -> list[Tensor]:
    return trees.tensors(values)


def _keys(tensors: Iterable[Tensor]) -> list[Key]:
    """The storages of tensors with memory of their own."""
    return [key_of(each) for each in tensors if _plain(each)]
