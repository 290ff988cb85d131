"""Where torch keeps the layout of tensors in memory, and its own guards of them.

`words_of` gives addresses, so that the layout of hundreds of tensors can be compared in
microseconds: reading `data_ptr` and strides of each takes ten times longer.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchproof.torch_private import contract

_WORD = struct.calcsize("P")
_MOST_DIMENSIONS = 5  # of a tensor that has its sizes inside, not in other memory
_IMPL, _META, _STORAGE = 22, 24, 8  # words that are searched


def same_layouts(tensors: Sequence[Tensor]) -> Callable[..., bool] | None:
    """A function that compares types, shapes, strides and `requires_grad` of tensors.

    It may say that something differs that does not matter, such as the grad mode. None
    if the installed torch has no such guards.
    """
    if not tensors or contract.missing("guards of tensors"):
        return None
    from torch._C._dynamo.guards import TensorGuards

    guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    check: Callable[..., bool] = guards.check
    return check


def words_of(tensors: Sequence[Tensor]) -> tuple[list[int], ...] | None:
    """The addresses of the words that say where tensors are, their layout and dtype.

    In three stages: the addresses of one are right only if the words of the one before
    have not changed. None if torch keeps any of them elsewhere.
    """
    if (places := _places()) is None or not all(map(_is_inline, tensors)):
        return None
    impls = [tensor._cdata for tensor in tensors]
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    inside = range(places.storage, places.last + 1)
    metas = [_word(impl, places.meta) for impl in impls]
    return (
        [id(tensor) + _WORD * places.impl for tensor in tensors],
        [impl + _WORD * place for impl in impls for place in inside]
        + [storage + _WORD * places.pointer for storage in storages],
        [meta + _WORD * places.learns for meta in metas if meta],
    )


def _is_inline(tensor: Tensor) -> bool:
    return tensor.dim() <= _MOST_DIMENSIONS and tensor.layout is torch.strided


@dataclass(frozen=True)
class _Places:
    """The numbers of words in the objects that make up a tensor."""

    impl: int  # in the Python object: the TensorImpl
    storage: int  # in the TensorImpl: the StorageImpl
    meta: int  # in the TensorImpl: the AutogradMeta, 0 while there is none
    last: int  # in the TensorImpl: the dtype, the device and flags
    pointer: int  # in the StorageImpl: the data
    learns: int  # in the AutogradMeta: requires_grad, and other flags


@functools.cache
def _places() -> _Places | None:
    try:
        return _found()
    except Exception:  # whatever is different in this torch
        return None


def _found() -> _Places | None:
    """Finds each word by a value that only it has, and tries whether it changes."""
    part = torch.zeros(400).as_strided((3, 5), (7, 11), 13)
    storage = part.untyped_storage()
    words = _words(part._cdata, _IMPL)
    first, offset = words.index(storage._cdata), words.index(13)
    own = torch.zeros(3)
    before = _words(own._cdata, _IMPL)
    own.requires_grad_()
    meta = _only_change(before, _words(own._cdata, _IMPL))
    address = _word(own._cdata, meta)
    learning = _words(address, _META)
    own.requires_grad_(False)
    places = _Places(
        impl=_words(id(own), type(own).__basicsize__ // _WORD).index(own._cdata),
        storage=first,
        meta=meta,
        last=offset + 2,  # after the number of elements
        pointer=_words(storage._cdata, _STORAGE).index(storage.data_ptr()),
        learns=_only_change(learning, _words(address, _META)),
    )
    is_inside = first < meta <= places.last < _IMPL
    return places if is_inside and all(_changes(places)) else None


def _changes(places: _Places) -> Iterator[bool]:
    """For each way to change a layout, whether the words change."""
    for change in _CHANGES:
        tensor = torch.zeros(3, 4)
        before = _read(places, tensor)
        change(tensor)
        yield _read(places, tensor) != before


_CHANGES: tuple[Callable[[Tensor], object], ...] = (
    lambda tensor: tensor.resize_(2, 2),
    lambda tensor: tensor.t_(),
    lambda tensor: tensor.set_(torch.zeros(3, 4)),  # type: ignore[call-overload]
    lambda tensor: setattr(tensor, "data", tensor.data.clone()),
    lambda tensor: setattr(tensor, "data", tensor.data.view(torch.int32)),
    lambda tensor: tensor.untyped_storage().resize_(4096),
)


def _read(places: _Places, tensor: Tensor) -> list[int]:
    inside = range(places.storage, places.last + 1)
    storage = tensor.untyped_storage()._cdata
    return [
        *(_word(tensor._cdata, place) for place in inside),
        _word(storage, places.pointer),
    ]


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_size_t * count).from_address(address))


def _word(address: int, place: int) -> int:
    return ctypes.c_size_t.from_address(address + _WORD * place).value


def _only_change(before: list[int], after: list[int]) -> int:
    """The number of the word that has changed; raises if it is not one."""
    pairs = enumerate(zip(before, after, strict=True))
    (place,) = [number for number, (old, new) in pairs if old != new]
    return place
