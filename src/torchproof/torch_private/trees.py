"""Nested values: finds and replaces what containers of any type hold.

Containers are lists, tuples, named tuples, mappings (also transformers' outputs),
dataclasses, and every type that a library registers with torch's pytree. With
`objects`, so are other objects with attributes, such as caches. A container may contain
itself, and containers may be nested to any depth. `mapped` also enters sets; `walk`
does not, because the parts of a set have no order to name them by.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from torchproof.records import Namespace

# The containers that libraries register with pytree.
_REGISTERED: Any = getattr(_pytree, "SUPPORTED_NODES", {})

Path = tuple[int | str, ...]  # the keys that lead to a part: value[a][b]

_ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None), Tensor})
_TENSORS = frozenset({Tensor, nn.Parameter})
_FLAT = _ATOMS | _TENSORS | {torch.dtype, torch.device, torch.layout, torch.Size}
_VALUES = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)
# Values that have attributes but are not entered.
_WHOLE = (
    Tensor,
    torch.Generator,
    nn.Module,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    BaseException,
)
_BUILT_WHOLE = (Mapping, list, tuple, deque, set, frozenset)
_LONGEST = 500  # characters of a label
_HEAD = 100  # characters of a longer label that are kept


class Part(NamedTuple):
    """A part of a container; `key` is its index, or the name of its attribute."""

    key: Any
    value: Any
    name: Any  # of a named tuple's field; else the key
    is_item: bool = True


def parts(value: Any, *, objects: bool = False) -> list[Part]:
    """The parts of a container; none for any other value."""
    kind = type(value)
    if kind in _ATOMS:
        return []
    if kind is tuple or kind is list:  # first, because most containers are
        return [Part(i, part, i) for i, part in enumerate(value)]
    if isinstance(value, dict | Mapping):
        return [Part(key, part, key) for key, part in list(value.items())]
    if isinstance(value, list | tuple | deque):
        names = getattr(value, "_fields", None) or range(len(value))
        named = zip(names, value, strict=True)
        return [Part(i, part, name) for i, (name, part) in enumerate(named)]
    own = {name: getattr(value, name) for name in _fields(value)}
    if objects:
        own |= attributes(value) or {}
    if not own and kind in _REGISTERED:
        children, _ = _REGISTERED[kind].flatten_fn(value)
        own = {str(i): part for i, part in enumerate(children)}
    return [Part(name, part, name, is_item=False) for name, part in own.items()]


def _fields(value: Any) -> list[str]:
    """The fields of a dataclass that are set."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return []
    return [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]


def attributes(value: Any) -> Namespace | None:
    """The attributes of an object that is entered; None for any other value."""
    if isinstance(value, _WHOLE) or type(value).__module__.startswith("torch."):
        return None
    own = getattr(value, "__dict__", None)
    return own if isinstance(own, dict) else None


# -- finding ---------------------------------------------------------------------------


def walk(
    value: Any, label: str = "", *, objects: bool = False
) -> Iterator[tuple[str, Any]]:
    """The value itself, then all its parts at any depth, the outer ones first.

    Labels are as `output.0.logits`; long ones are cut and numbered.
    """
    numbers = itertools.count(1)

    def labelled(above: str, part: Part) -> str:
        text = f"{above}.{part.name}" if above else str(part.name)
        if len(text) > _LONGEST:
            return f"{text[:_HEAD]}...({next(numbers)})"
        return text

    return _descend(value, label, labelled, objects)


def leaves(value: Any, label: str = "") -> Iterator[tuple[str, Any]]:
    """The parts that are not containers, each with its label."""
    for name, part in walk(value, label):
        if not isinstance(part, list | tuple | Mapping) and not parts(part):
            yield name, part


def tensors(value: Any, *, objects: bool = False) -> list[Tensor]:
    """The tensors in a value, in order; one that occurs twice is listed twice.

    Flat arguments of operations take few function calls: eager runs are watched with a
    profile function, which every call would start.
    """
    kind = type(value)
    if kind in _TENSORS or isinstance(value, Tensor):
        return [value]
    if kind is list or kind is dict:
        items = value if kind is list else value.values()
        if _FLAT.issuperset(map(type, items)):
            return [part for part in items if type(part) in _TENSORS]
    elif kind is tuple:  # of arguments, most often; it cannot contain itself
        found: list[Tensor] = []
        for part in value:
            if type(part) in _TENSORS:
                found += (part,)
            elif type(part) not in _FLAT:
                found += tensors(part, objects=objects)
        return found
    return [
        part
        for _, part in _descend(value, None, lambda above, part: None, objects)
        if isinstance(part, Tensor)
    ]


def tensor_paths(value: Any) -> Iterator[tuple[Path, Tensor]]:
    """The tensors that can be reached by indexing alone, each with its path."""

    def path(above: Path | None, part: Part) -> Path | None:
        return (*above, part.key) if part.is_item and above is not None else None

    for keys, part in _descend(value, (), path, False):
        if keys is not None and isinstance(part, Tensor):
            yield keys, part


def _descend(
    value: Any, tag: Any, tag_of: Callable[[Any, Part], Any], objects: bool
) -> Iterator[tuple[Any, Any]]:
    """All parts with a tag each, made from the container's; without recursion.

    A container inside itself is not entered again.
    """
    above: list[int] = []
    entered: set[int] = set()
    levels = [iter([(tag, value)])]
    while levels:
        for tag, part in levels[-1]:
            yield tag, part
            if type(part) in _ATOMS or id(part) in entered:
                continue
            if inner := parts(part, objects=objects):
                above.append(id(part))
                entered.add(id(part))
                levels.append(iter([(tag_of(tag, each), each.value) for each in inner]))
                break
        else:
            levels.pop()
            if above:
                entered.discard(above.pop())


def values_of(value: Any, label: str) -> dict[str, Any]:
    """The parts of a value to compare: detached tensors, plain values, and types.

    The result keeps alive only what is compared.
    """
    found: dict[str, Any] = {}
    for name, part in walk(value, label, objects=True):
        if isinstance(part, Tensor):
            found[name] = part.detach()
        else:
            plain = part is None or isinstance(part, _VALUES)
            found[name] = part if plain else type(part)
    return found


# -- replacing -------------------------------------------------------------------------

Change = Callable[[Any], Any]


def mapped(
    value: Any,
    change: Change,
    *,
    objects: bool = False,
    is_leaf: Callable[[Any], bool] = lambda part: False,
) -> Any:
    """The same structure with `change(leaf)` in place of every leaf.

    A leaf that occurs twice is changed once. Containers are new, except those for which
    `is_leaf` is true and objects without tensors. The generators yield instead of
    recursing, so that depth is no limit.
    """
    if isinstance(value, Tensor):
        return change(value)
    calls = [_Mapping(change, objects, is_leaf, {}).of(value)]
    answer = None
    while calls:
        try:
            inner = calls[-1].send(answer)
        except StopIteration as stop:
            calls.pop()
            answer = stop.value
        else:
            calls.append(inner)
            answer = None
    return answer


Build = Callable[[list[Any]], Any]


def template(value: Any) -> tuple[list[Tensor], Build] | None:
    """The tensors in a value, and how to make it again with others in their place.

    What is made is what `mapped` would make, with `objects`; all that does not depend
    on the tensors is decided here. None if a container occurs twice.
    """
    found: dict[int, Tensor] = {}
    try:
        build = _template(value, found, set())
    except (_Shared, RecursionError):
        return None
    return list(found.values()), build


class _Shared(Exception):
    """A container is in several places, or in itself."""


def _template(value: Any, found: dict[int, Tensor], entered: set[int]) -> Build:
    if isinstance(value, Tensor):
        found.setdefault(id(value), value)
        return operator.itemgetter(list(found).index(id(value)))
    kind: Any = type(value)
    inner = _Mapping(lambda leaf: leaf, True, lambda part: False, {})._inner(value)
    if not inner and kind not in (list, dict):
        return lambda images: value
    if id(value) in entered:
        raise _Shared
    entered.add(id(value))
    builds = [_template(part.value, found, entered) for part in inner]
    if kind is tuple:
        return lambda images: tuple([build(images) for build in builds])
    if kind is list:
        return lambda images: [build(images) for build in builds]
    if kind is dict:
        keys = [part.key for part in inner]
        return lambda images: dict(
            zip(keys, [build(images) for build in builds], strict=True)
        )

    if _is_output(value, inner):
        keys, absent = [part.key for part in inner], dict.fromkeys(vars(value))

        def output(images: list[Any]) -> Any:
            """Without its `__init__`, which looks at each part again."""
            image = kind.__new__(kind)
            image.__dict__.update(absent)
            for key, build in zip(keys, builds, strict=True):
                part = build(images)
                OrderedDict.__setitem__(image, key, part)
                image.__dict__[key] = part
            return image

        return output

    def rebuilt(images: list[Any]) -> Any:
        own = [build(images) for build in builds]
        image = _to_fill(value)
        if image is None:
            return _rebuilt(value, inner, own)
        _fill(image, inner, own)
        return image

    return rebuilt


def _is_output(value: Any, inner: list[Part]) -> bool:
    """Whether its items and equal attributes are all there is, as in transformers."""
    if not isinstance(value, OrderedDict) or not dataclasses.is_dataclass(value):
        return False
    given = {name: part for name, part in vars(value).items() if part is not None}
    return len(given) == len(inner) and all(
        given.get(part.key) is part.value for part in inner
    )


@dataclasses.dataclass(frozen=True)
class _Mapping:
    change: Change
    objects: bool
    is_leaf: Callable[[Any], bool]
    done: dict[int, tuple[Any, Any]]  # by id: the value, kept alive, and its image

    def of(self, value: Any) -> Generator[Any, Any, Any]:
        if id(value) in self.done:
            return self.done[id(value)][1]
        inner = [] if self.is_leaf(value) else self._inner(value)
        if not inner and (type(value) not in (list, dict) or self.is_leaf(value)):
            self.done[id(value)] = value, self.change(value)
            return self.done[id(value)][1]
        image = _to_fill(value)
        # Before it is filled: a part may refer back to it.
        self.done[id(value)] = value, value if image is None else image
        images: list[Any] = []
        for part in inner:
            images += [(yield self.of(part.value))]
        if image is None:
            image = _rebuilt(value, inner, images)
            self.done[id(value)] = value, image
        else:
            _fill(image, inner, images)
        return image

    def _inner(self, value: Any) -> list[Part]:
        if isinstance(value, set | frozenset):
            return [Part(None, part, None) for part in value]
        inner = parts(value)
        if inner or not self.objects:
            return inner
        holds = any(True for _ in tensors(value, objects=True))
        return parts(value, objects=True) if holds else []


def _to_fill(value: Any) -> Any:
    """A container whose parts can be set one by one; None for other kinds."""
    if type(value) in (list, dict):
        return type(value)()
    if isinstance(value, _BUILT_WHOLE):
        return None
    registered = type(value) in _REGISTERED and not _fields(value)
    return None if registered else copy.copy(value)


def _fill(container: Any, inner: list[Part], images: list[Any]) -> None:
    if isinstance(container, list):
        container += images
        return
    for part, image in zip(inner, images, strict=True):
        if isinstance(container, dict):
            container[part.key] = image
        else:  # frozen dataclasses refuse plain assignment
            object.__setattr__(container, part.key, image)


def _rebuilt(value: Any, inner: list[Part], images: list[Any]) -> Any:
    """A container of the same type as `value` with other parts."""
    kind: Any = type(value)
    if isinstance(value, Mapping):
        named = {part.key: image for part, image in zip(inner, images, strict=True)}
        if dataclasses.is_dataclass(value):  # transformers' outputs
            return kind(**named)
        if not isinstance(value, dict):
            return kind(named)
        result: Any = copy.copy(value)  # a defaultdict keeps its factory
        result.update(named)
        return result
    if isinstance(value, _BUILT_WHOLE):
        return kind(*images) if hasattr(value, "_fields") else kind(images)
    node = _REGISTERED[kind]
    return node.unflatten_fn(images, node.flatten_fn(value)[1])
