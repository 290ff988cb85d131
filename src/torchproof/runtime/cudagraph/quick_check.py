"""Whether watched places may have changed, found in microseconds.

CPython gives each dict a version, which changes whenever the dict does (PEP 509). Most
other places are a pointer in the memory of an object: its type, its `__dict__`, a slot,
the variable of a cell, the code of a function. One numpy gather reads all these words.
If they are what they were, no place changed; if the version of a dict differs, the
watched entries of that dict are compared. A second gather reads the items of lists and
sets, whose addresses are among the first words. The rest, such as context variables, is
read by Python. `StateSnapshot` finds out what differs, and whether it is only another
object of the same value.

Python 3.13 changes attributes without a new version, so all places are the rest there.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import operator
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import numpy
from torch import Tensor

from torchproof.runtime.cudagraph.watched_places import (
    BASES,
    CELL,
    ENTRY,
    FUNCTION,
    GONE,
    LIST_ITEMS,
    NAMES,
    NAMESPACE,
    SLOT,
    TYPE,
    VALUES,
    Watch,
    Watches,
    contents,
    dict_of,
    dict_of_class,
    identities,
    in_slot,
    isinstance_of,
)
from torchproof.torch_private.tensor_layouts import words_of

_WORD = struct.calcsize("P")
_TYPE = _WORD  # after the reference count
_VERSION = 3 * _WORD  # after the reference count, the type and the number of entries
_BEFORE = 6 * _WORD  # how far a `__dict__` may precede its object


class QuickCheck:
    """The watched places, as they were at the last `renew`."""

    def __init__(self, watches: Watches) -> None:
        self._entries: dict[int, _Entries] = {}  # by id of the dict
        words: list[int] = []
        self._containers: list[Any] = []
        self.rest = Watches()  # what Python reads
        for watch in watches.every:
            if is_supported() and (namespace := _dict_with(watch)) is not None:
                new = _Entries(namespace)
                self._entries.setdefault(id(namespace), new).add(watch)
                if watch.kind.name == "items" and isinstance_of(namespace, (_ORDERED,)):
                    words += _inside(namespace, dict, _ORDERED)  # the order
            elif is_supported() and (found := _words_of(watch)):
                words += found
                if type(watch.owner) in (list, set):
                    self._containers.append(watch.owner)
            else:
                self.rest.every.append(watch)
        self._watches = watches  # alive, so that each word stays that of its object
        self._by_number = list(self._entries.values())
        self._read = _gather([*(i + _VERSION for i in self._entries), *words])
        self._values_of_rest = self.rest.reader()
        self.renew()

    def renew(self) -> None:
        """Changes are relative to this moment from now on."""
        self._words = self._read()
        self._read_items = _gather(
            list(chain.from_iterable(map(_items_of, self._containers)))
        )
        self._items = self._read_items().tobytes()
        for each in self._by_number:
            each.renew()
        # Alive, so that the addresses of what is there stay unique.
        self._kept = list(map(list, self._containers))
        self._values = self._values_of_rest()
        self._identities = identities(self._values)

    def unchanged(self) -> bool:
        words = self._read()
        if words.tobytes() != self._words.tobytes():
            for number in numpy.flatnonzero(words != self._words):
                if number >= len(self._by_number):
                    return False
                if not self._by_number[number].unchanged():
                    return False
            self._words = words
        # Only now is it known that the items are still where they were.
        if self._read_items().tobytes() != self._items:
            return False
        return not self.rest.every or (
            identities(self._values_of_rest()) == self._identities
        )


class TensorCheck:
    """Where tensors are, and their layout, dtype and `requires_grad`."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        # Kept alive, so that no other tensor gets their address.
        self._aliases = [tensor.detach() for tensor in tensors]
        self.then = self.now()
        self._renew()

    def now(self) -> list[tuple[Any, ...]]:
        """For each tensor, its address and all the rest."""
        return list(zip(*(map(part, self._tensors) for part in _PARTS), strict=True))

    def _renew(self) -> None:
        stages = words_of(self._tensors)
        self._stages = None if stages is None else list(map(_gather, stages))
        self._words = [read().tobytes() for read in self._stages or ()]

    def unchanged(self) -> bool:
        if self._has_same_words():
            return True
        same = self.now() == self.then
        if same:
            self._renew()
        return same

    def _has_same_words(self) -> bool:
        # The words of a stage may be gone if those of the one before have changed.
        return self._stages is not None and all(
            read().tobytes() == words
            for read, words in zip(self._stages, self._words, strict=True)
        )


_PARTS: tuple[Callable[[Tensor], Any], ...] = (
    Tensor.data_ptr,
    *map(operator.attrgetter, ("requires_grad", "shape")),
    Tensor.stride,
    operator.attrgetter("dtype"),
)


class _Entries:
    """What is watched of a dict: the entries of some names, all keys or all values."""

    def __init__(self, namespace: dict[Any, Any]) -> None:
        self._namespace = namespace
        self._names: set[Any] = set()
        self._keys = self._values = False

    def add(self, watch: Watch) -> None:
        if watch.kind is ENTRY:
            self._names.add(watch.arguments[1])
        else:
            self._values |= watch.kind is VALUES
            self._keys |= watch.kind is not VALUES

    def renew(self) -> None:
        self._then = self._now()  # alive, so that their ids stay unique

    def unchanged(self) -> bool:
        return identities(self._now()) == identities(self._then)

    def _now(self) -> list[Any]:
        keys = dict.keys(self._namespace) if self._keys else ()
        if self._values:
            return [*keys, *dict.values(self._namespace)]
        return [*keys, *(dict.get(self._namespace, each, GONE) for each in self._names)]


def _dict_with(watch: Watch) -> dict[Any, Any] | None:
    """The dict that a place is in, or that it consists of."""
    container = watch.arguments[0]
    if watch.kind in (ENTRY, NAMES, VALUES) or watch.kind.name == "items":
        return container if isinstance_of(container, (dict,)) else None
    return None


def _words_of(watch: Watch) -> list[int]:
    """The addresses of the words that hold a place; none if Python has to read it."""
    owner, kind = watch.owner, watch.kind
    if kind is TYPE:
        return [id(owner) + _TYPE]
    if kind is FUNCTION:
        return [id(owner) + _in_function()[watch.arguments[1]]]
    if kind is CELL:
        value = contents(owner)
        return [] if value is owner else _pointers(owner, value)
    if kind is BASES:
        return _pointers(owner, owner.__mro__)
    if kind is SLOT:
        member, owner = watch.arguments
        return _pointers(owner, in_slot(member, owner))
    if kind is NAMESPACE:
        return _pointers(owner, dict_of(owner), before=_BEFORE)
    if type(owner) in (list, set) and len(owner) <= _MOST_ITEMS:
        return _inside(owner, object, type(owner))
    return []


_ORDERED: type = collections.OrderedDict
# Memory for more items goes back to the system once another thread resizes a container.
_MOST_ITEMS = 1000


def _items_of(container: Any) -> range:
    """The addresses of the words of a list's or set's items, if in other memory."""
    table = id(container) + (LIST_ITEMS if type(container) is list else _in_set())
    first = ctypes.c_size_t.from_address(table).value
    if type(container) is list:
        return range(first, first + _WORD * len(container), _WORD)
    if id(container) < first < id(container) + set.__basicsize__:
        return range(0)  # in the set itself
    mask = ctypes.c_size_t.from_address(table - _WORD).value
    return range(first, first + 2 * _WORD * (mask + 1), _WORD)  # with their hashes


def _inside(owner: Any, base: type, kind: type) -> list[int]:
    """The words that objects of a type have beside those of its base class."""
    places = range(base.__basicsize__, kind.__basicsize__, _WORD)
    return [id(owner) + place for place in places]


def _pointers(owner: Any, value: Any, before: int = 0) -> list[int]:
    """Where in the memory of an object there are pointers to a value of it."""
    size = type(owner).__basicsize__
    first = id(owner) - before
    words = (ctypes.c_size_t * ((before + size) // _WORD)).from_address(first)
    is_counter = before // _WORD  # the reference count may equal any number
    return [
        first + number * _WORD
        for number, word in enumerate(words)
        if word == id(value) and number != is_counter
    ]


def _gather(addresses: list[int]) -> Callable[[], Any]:
    """Returns a function that reads the words at these addresses."""
    if not addresses:
        return lambda: numpy.empty(0, numpy.uintp)
    first, last = min(addresses), max(addresses)
    count = (last - first) // _WORD + 1
    # The array spans memory that is not mapped; only these addresses are read.
    span: Any = (ctypes.c_uint8 * (count * _WORD)).from_address(first)
    memory = numpy.frombuffer(span, numpy.uintp)
    places = numpy.array([(each - first) // _WORD for each in addresses], numpy.intp)
    return functools.partial(memory.take, places, mode="wrap")


# -- CPython ---------------------------------------------------------------------------


@functools.cache
def is_supported() -> bool:
    """Whether every change of a dict changes its version, also in optimised code."""
    if struct.calcsize("N") != 8 or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    try:
        return bool(_in_function() and _in_set()) and all(_changes())
    except Exception:
        return False


def _changes() -> Iterable[bool]:
    """For each way to change a dict, whether it gets a new version."""

    class Probed:
        value: object = None

    probed: Any = Probed()
    probed.value = probed.gone = None
    scope: dict[str, Any] = {}
    exec("def store(value):\n    global name\n    name = value", scope)

    def store(value: object) -> None:
        probed.value = value

    of_class = dict_of_class(Probed)
    for change, changed in [
        *[(store, vars(probed)), (scope["store"], scope)] * 100,  # specialised code
        (lambda value: setattr(probed, "value", value), vars(probed)),
        (lambda value: delattr(probed, "gone"), vars(probed)),
        (lambda value: vars(probed).update(value=value), vars(probed)),
        (lambda value: setattr(Probed, "value", value), of_class),
    ]:
        version = ctypes.c_uint64.from_address(id(changed) + _VERSION)
        before = version.value
        change(object())
        yield before != version.value


@functools.cache
def _in_function() -> dict[str, int]:
    """Where in a function object its code and its defaults are."""

    def probed(a: object = None, *, b: object = None) -> None:
        """Has all three."""

    found = {
        name: _pointers(probed, getattr(probed, name))
        for name in ("__code__", "__defaults__", "__kwdefaults__")
    }
    if any(len(each) != 1 for each in found.values()):
        return {}
    return {name: each[0] - id(probed) for name, each in found.items()}


@functools.cache
def _in_set() -> int:
    """Where in a set the address of its items is, after the mask of their number."""
    items = set(range(40))
    words = _inside(items, object, set)
    for place, mask in enumerate(words[:-1]):
        count = ctypes.c_size_t.from_address(mask).value + 1
        if sys.getsizeof(items) - sys.getsizeof(set()) == 2 * _WORD * count:
            return words[place + 1] - id(items)
    return 0
