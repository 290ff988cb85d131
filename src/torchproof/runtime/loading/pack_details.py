"""What a deploy pack says of its code and its calls, checked before any of it is used.

The manifest is sealed by whoever wrote it, so a seal says nothing of what it holds. The
types below are what the rest of `loading` relies on.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from torchproof.records import Mismatch, schema
from torchproof.runtime.loading import graph_origin as graphs
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.refusal import Refused

_DAMAGED = "its papers are damaged"
_MOST_ELEMENTS = 2**36  # of a tensor that is made to warm a call


class Place(TypedDict):
    """Where the code was made."""

    device: str
    torch: NotRequired[str | None]
    commit: NotRequired[str | None]
    python: NotRequired[str | None]
    machine: NotRequired[str | None]
    isa: NotRequired[str | None]
    cpu: NotRequired[str | None]
    hip: NotRequired[str | None]
    cuda: NotRequired[str | None]
    triton: NotRequired[str | None]
    gpu: NotRequired[str | None]
    capability: NotRequired[str | None]
    driver: NotRequired[str | None]
    threads: NotRequired[int | None]
    features: NotRequired[tuple[str, ...]]


class Source(TypedDict, total=False):
    """A file that was traced."""

    file: str | None
    sha256: str | None
    code: str | None


class Tensor(TypedDict):
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool
    marks: Any
    low: NotRequired[schema.Integer]
    high: NotRequired[schema.Integer]
    sorted: NotRequired[bool]


class Inputs(TypedDict, total=False):
    """A call without its values, or why it is not made again."""

    why_not: str | None
    form: Mapping[str, Any]
    tensors: tuple[Tensor, ...]


class Training(TypedDict, total=False):
    training: bool
    others: tuple[str, ...]


class EntryFile(TypedDict, total=False):
    file: str | None
    why_not: str | None


class Call(TypedDict):
    inputs: Inputs
    state: Training
    gradients: bool
    keys: NotRequired[tuple[str, ...]]
    entry: NotRequired[EntryFile]


class Caches(TypedDict):
    """The details of a pack of cache files."""

    place: Place
    code: Mapping[str, Source]
    graphs: int
    train: bool
    calls: tuple[Call, ...]
    switches: NotRequired[Mapping[str, str]]


class Graph(TypedDict):
    """What torch looked up: a digest of each fact, and its text where it is short."""

    key: str
    facts: Mapping[str, tuple[str | None, ...]]


class Parameter(TypedDict):
    name: str
    kind: int


class Signature(TypedDict):
    parameters: tuple[Parameter, ...]
    arguments: Mapping[str, Mapping[str, Any]]


class TensorSpec(TypedDict):
    label: str
    dtype: str
    device: str
    sizes: tuple[int | str, ...]
    order: tuple[int, ...]
    written: NotRequired[bool]


class Range(TypedDict):
    low: int
    high: int | None
    only: tuple[int, ...] | None


class InputSpec(TypedDict):
    inputs: tuple[TensorSpec, ...]
    ranges: Mapping[str, Range]
    conditions: tuple[str, ...]


class Package(TypedDict):
    """The details of a package, which holds the model itself."""

    device: str
    call: Signature
    entrance: InputSpec
    output: Mapping[str, Any]
    place: NotRequired[Place]
    without: NotRequired[Any]


def assert_caches(plain: Any) -> None:
    """Raises `Refused` for details that the loading of caches cannot use."""
    _assert(Caches, plain, _DAMAGED)
    for number, call in enumerate(plain["calls"]):
        if call["inputs"].get("why_not") is None:
            _assert_made(call["inputs"], f"calls[{number}].inputs")


def assert_package(plain: Any) -> None:
    """Raises `Refused` for details that no package can answer calls by."""
    _assert(Package, plain, _DAMAGED)
    taken = plain["entrance"]["inputs"]
    for each in taken:
        if sorted(each["order"]) != list(range(len(each["sizes"]))):
            label = f"{each['label']!r:.40}"
            raise Refused(f"{_DAMAGED}: the dimensions of {label} have no order")
    sizes = [size for each in taken for size in each["sizes"] if isinstance(size, str)]
    for text in (*plain["entrance"]["conditions"], *sizes):
        try:
            ast.parse(text, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            told = f"{text[:40]!r} is no condition on sizes"
            raise Refused(f"{_DAMAGED}: {told}") from None
    _assert_form(plain["output"], None, "output")
    for name, form in plain["call"]["arguments"].items():
        _assert_form(form, len(taken), f"call.arguments.{name}")


def read_graphs(contents: Contents) -> graphs.PackedGraphs:
    """What the pack knows of its graphs."""
    file = graphs.FILE
    if file not in contents.names():
        raise Refused(f"{_DAMAGED}: {file} is missing")
    try:
        plain: graphs.PackedGraphs = schema.loads(contents.read(file).decode())
    except (ValueError, RecursionError):
        raise Refused(f"{_DAMAGED}: {file} is no JSON") from None
    _assert(tuple[Graph, ...], plain, f"{_DAMAGED}: {file}")
    if any(len(fact) != 2 for graph in plain for fact in graph["facts"].values()):
        raise Refused(f"{_DAMAGED}: {file}: a fact is a digest and a text")
    return plain


def _assert(kind: Any, plain: Any, what: str) -> None:
    try:
        schema.check(kind, plain)
    except Mismatch as error:
        raise Refused(f"{what}: {error}") from None


def _assert_made(inputs: Mapping[str, Any], path: str) -> None:
    """A call that can be made again: sizes that are there, places that exist."""
    if "form" not in inputs or "tensors" not in inputs:
        raise Refused(f"{_DAMAGED}: {path} lacks a form or tensors")
    for tensor in inputs["tensors"]:
        elements = 1
        for size in tensor["shape"]:
            elements *= size
        if len(tensor["shape"]) != len(tensor["stride"]) or elements > _MOST_ELEMENTS:
            raise Refused(f"{_DAMAGED}: {path} has a tensor of an impossible size")
    _assert_form(inputs["form"], len(inputs["tensors"]), path)


_PARTS = ("tensor", "number", "value", "float", "list", "tuple", "dict", "fields")


def _assert_form(form: Any, tensors: int | None, path: str) -> None:
    """What `forms.rebuild` takes: `tensors` is how many there are, if that is known."""
    names = [name for name in _PARTS if name in form] if isinstance(form, dict) else []
    if len(names) != 1:
        raise Refused(f"{_DAMAGED}: {path} is no form of a value")
    (name,), value = names, form[names[0]]
    if name in ("tensor", "number"):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < 0 or (tensors is not None and value >= tensors):
            raise Refused(f"{_DAMAGED}: {path} names no tensor: {value!r:.40}")
    elif name == "float":
        if value not in ("nan", "inf", "-inf"):
            raise Refused(f"{_DAMAGED}: {path} is no number: {value!r:.40}")
    elif name in ("list", "tuple", "dict", "fields"):
        _assert_parts(name, value, tensors, path)


def _assert_parts(name: str, value: Any, tensors: int | None, path: str) -> None:
    if not isinstance(value, list):
        raise Refused(f"{_DAMAGED}: {path} is no form of a value")
    for number, part in enumerate(value):
        if name in ("dict", "fields"):
            pair = isinstance(part, list) and len(part) == 2
            if not pair or not isinstance(part[0], str | int):
                raise Refused(f"{_DAMAGED}: {path}[{number}] is no named value")
            part = part[1]
        _assert_form(part, tensors, f"{path}[{number}]")
