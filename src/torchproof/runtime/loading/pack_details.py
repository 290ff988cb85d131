"""The schema of a deploy pack's details, and the checks before they are used.

Takes the `details` of a manifest, raises `Refused` if they do not match the types
below. The hash of a manifest proves only that it was not changed, not that it is valid;
the rest of `loading` relies on these types.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from torchproof.records import Mismatch, schema
from torchproof.runtime.loading import graph_origin as graphs
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.manifest import Refused

_INVALID = "its manifest is invalid"
_MOST_ELEMENTS = 2**36  # of a tensor that is generated for the warm-up


class Place(TypedDict):
    """The machine that built the code."""

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
    """A source file that was traced."""

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
    """A call without its values, or why it cannot be generated."""

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
    """A cache lookup of torch: the digest of each fact, and its text if it is short."""

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
    """The details of a package, which contains the model itself."""

    device: str
    call: Signature
    entrance: InputSpec
    output: Mapping[str, Any]
    place: NotRequired[Place]
    without: NotRequired[Any]


def assert_caches(plain: Any) -> None:
    """Raises `Refused` if the details of a pack of cache files are invalid."""
    _assert(Caches, plain, _INVALID)
    for number, call in enumerate(plain["calls"]):
        if call["inputs"].get("why_not") is None:
            _assert_inputs(call["inputs"], f"calls[{number}].inputs")


def assert_package(plain: Any) -> None:
    """Raises `Refused` if the details of a package are invalid."""
    _assert(Package, plain, _INVALID)
    inputs = plain["entrance"]["inputs"]
    for each in inputs:
        if sorted(each["order"]) != list(range(len(each["sizes"]))):
            label = f"{each['label']!r:.40}"
            raise Refused(
                f"{_INVALID}: the order of the dimensions of {label} is invalid"
            )
    sizes = [size for each in inputs for size in each["sizes"] if isinstance(size, str)]
    for text in (*plain["entrance"]["conditions"], *sizes):
        try:
            ast.parse(text, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            reason = f"{text[:40]!r} is not a condition on sizes"
            raise Refused(f"{_INVALID}: {reason}") from None
    _assert_pytree(plain["output"], None, "output")
    for name, spec in plain["call"]["arguments"].items():
        _assert_pytree(spec, len(inputs), f"call.arguments.{name}")


def read_graphs(contents: Contents) -> graphs.PackedGraphs:
    """The cache lookups of the build."""
    file = graphs.FILE
    if file not in contents.names():
        raise Refused(f"{_INVALID}: {file} is missing")
    try:
        plain: graphs.PackedGraphs = schema.loads(contents.read(file).decode())
    except (ValueError, RecursionError):
        raise Refused(f"{_INVALID}: {file} is not valid JSON") from None
    _assert(tuple[Graph, ...], plain, f"{_INVALID}: {file}")
    if any(len(fact) != 2 for graph in plain for fact in graph["facts"].values()):
        raise Refused(f"{_INVALID}: {file}: a fact must have a digest and a text")
    return plain


def _assert(kind: Any, plain: Any, what: str) -> None:
    try:
        schema.check(kind, plain)
    except Mismatch as error:
        raise Refused(f"{what}: {error}") from None


def _assert_inputs(inputs: Mapping[str, Any], path: str) -> None:
    """Raises `Refused` if the call cannot be generated from its description."""
    if "form" not in inputs or "tensors" not in inputs:
        raise Refused(f"{_INVALID}: {path} lacks its form or its tensors")
    for tensor in inputs["tensors"]:
        elements = 1
        for size in tensor["shape"]:
            elements *= size
        if len(tensor["shape"]) != len(tensor["stride"]) or elements > _MOST_ELEMENTS:
            raise Refused(f"{_INVALID}: {path} has a tensor with an invalid size")
    _assert_pytree(inputs["form"], len(inputs["tensors"]), path)


_PARTS = ("tensor", "number", "value", "float", "list", "tuple", "dict", "fields")


def _assert_pytree(spec: Any, tensors: int | None, path: str) -> None:
    """Raises `Refused` if `pytree_json.rebuild` cannot take the spec.

    `tensors` is the number of tensors, or None if it is unknown.
    """
    names = [name for name in _PARTS if name in spec] if isinstance(spec, dict) else []
    if len(names) != 1:
        raise Refused(f"{_INVALID}: {path} is not a valid form")
    name = names[0]
    value = spec[name]
    if name in ("tensor", "number"):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < 0 or (tensors is not None and value >= tensors):
            raise Refused(
                f"{_INVALID}: {path} has an invalid tensor index: {value!r:.40}"
            )
    elif name == "float":
        if value not in ("nan", "inf", "-inf"):
            raise Refused(f"{_INVALID}: {path} is not a float: {value!r:.40}")
    elif name in ("list", "tuple", "dict", "fields"):
        _assert_parts(name, value, tensors, path)


def _assert_parts(name: str, value: Any, tensors: int | None, path: str) -> None:
    if not isinstance(value, list):
        raise Refused(f"{_INVALID}: {path} is not a valid form")
    for number, part in enumerate(value):
        if name in ("dict", "fields"):
            pair = isinstance(part, list) and len(part) == 2
            if not pair or not isinstance(part[0], str | int):
                raise Refused(
                    f"{_INVALID}: {path}[{number}] is not a pair of key and value"
                )
            part = part[1]
        _assert_pytree(part, tensors, f"{path}[{number}]")
