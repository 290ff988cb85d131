"""Copies, compares and restores the memory behind tensors, once per storage.

Takes tensors, any number of which may share a storage; returns a `Region` per storage:
the span of bytes that these tensors show. Bytes are read and written without autograd,
so that version counters do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchproof.runtime.tensors.free_memory import available_bytes

HOST = torch.device("cpu")
_SHARE = 0.25  # of free memory that copies of parameters may fill
_HOST_SHARE = 0.75  # of free host memory that copies may fill for a short time
_CHUNK_BYTES = 1 << 24
_LARGE_BYTES = 1 << 20  # from which a copy is worth moving to the host
_ALIGNED = 16  # bytes, the size of the largest element type

Key = tuple[torch.device, int]  # of a storage


def key_of(tensor: Tensor) -> Key:
    return tensor.device, tensor.untyped_storage().data_ptr()


@dataclass
class Region:
    """The bytes of one storage that some tensors show, and a copy of them."""

    live: Tensor
    bulk: bool
    copy: Tensor | None = None

    def differs(self) -> bool:
        return any(not torch.equal(now, was) for now, was in self._chunks())

    def restore(self) -> None:
        if self.copy is not None and self.copy.device != self.live.device:
            # Without a comparison, which would need memory on the device.
            if self._is_there():
                self.live.copy_(self.copy, non_blocking=True)
            return
        for now, was in self._chunks():
            if not torch.equal(now, was):
                now.copy_(was)

    def _is_there(self) -> bool:
        """Whether the storage still has these bytes; it may have been resized."""
        return self.live.untyped_storage().nbytes() >= _end(self.live)

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.copy is None or not self._is_there():
            return
        pairs = zip(
            torch.split(self.live, _CHUNK_BYTES),
            torch.split(self.copy, _CHUNK_BYTES),
            strict=True,
        )
        for now, was in pairs:
            yield now, was.to(now.device)


def _end(tensor: Tensor) -> int:
    """The first byte of the storage after those that the tensor shows."""
    last = sum(
        (n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (int(tensor.storage_offset()) + last + 1) * tensor.itemsize


def regions_of(tensors: Iterable[tuple[Tensor, bool]]) -> dict[Key, Region]:
    """The regions to copy; tensors with the flag are copied only if memory allows."""
    spans: dict[Key, list[tuple[int, int, Tensor, bool]]] = {}
    for tensor, bulk in tensors:
        if tensor.numel():
            begin = int(tensor.storage_offset()) * tensor.itemsize
            begin -= begin % _ALIGNED
            span = begin, _end(tensor), tensor, bulk
            spans.setdefault(key_of(tensor), []).append(span)
    regions = {}
    for key, parts in spans.items():
        begin, end = min(p[0] for p in parts), max(p[1] for p in parts)
        end = min(end, parts[0][2].untyped_storage().nbytes())
        live = torch.empty(0, dtype=torch.uint8, device=key[0])
        live.set_(parts[0][2].untyped_storage(), begin, (max(0, end - begin),), (1,))
        regions[key] = Region(live, all(part[3] for part in parts))
    return regions


def copy_all(
    regions: Iterable[Region], parameters: bool, refused: dict[str, None]
) -> None:
    """Copies the regions; adds to `refused` why parameters were not copied."""
    bulk: dict[torch.device, list[Region]] = {}
    for region in regions:
        if region.bulk:
            bulk.setdefault(region.live.device, []).append(region)
        else:
            region.copy = region.live.clone()
    for device, on_device in bulk.items():
        size = sum(region.live.numel() for region in on_device)
        places = [p for p in (device, HOST) if size <= _SHARE * free_bytes(p)]
        if not parameters:
            refused["parameters: not copied on request"] = None
        elif not places:
            free = free_bytes(device) / 1e9
            refused[
                f"parameters: a copy of {size / 1e9:.3g} GB would take more than a"
                f" quarter of the {free:.3g} GB free on {device}, and of host memory"
            ] = None
        else:
            for region in on_device:
                region.copy = region.live.to(places[0], copy=True)


class Copies:
    """Makes copies that take little memory of the device: large ones on the host.

    The system is asked for free memory once: it takes long to answer.
    """

    def __init__(self) -> None:
        self._room: dict[torch.device, int] = {}

    def make(self, tensor: Tensor) -> Tensor | None:
        """A copy of a tensor; None if it fits nowhere.

        In pinned host memory, it is complete for later work on the current stream,
        which the host does not wait for.
        """
        size = tensor.numel() * tensor.itemsize
        if tensor.device.type == HOST.type or size < _LARGE_BYTES:
            return tensor.clone()
        if self._takes(size, HOST):
            copy = torch.empty_like(tensor, device=HOST, pin_memory=True)
            return copy.copy_(tensor, non_blocking=True)
        return tensor.clone() if self._takes(size, tensor.device) else None

    def _takes(self, size: int, place: torch.device) -> bool:
        if place not in self._room:
            share = _HOST_SHARE if place == HOST else _SHARE
            self._room[place] = int(share * free_bytes(place))
        if size > self._room[place]:
            return False
        self._room[place] -= size
        return True


def free_bytes(device: torch.device) -> int:
    """The memory that can still be allocated on a device."""
    if device.type != "cuda":
        return available_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + cached
