"""The details of a deploy pack: what its manifest says beside the list of files.

`build` writes these records and `torchproof.load` reads them. The hash of a manifest
proves only that it was not changed, so reading checks the type of every field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torchproof.records import Mismatch, schema
from torchproof.runtime.loading.input_spec import CallSpec, InputSpec
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.manifest import Refused
from torchproof.torch_private import Structure, Unfit

_INVALID = "its manifest is invalid"
_MOST_ELEMENTS = 2**36  # of a tensor that is generated for the warm-up
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """The machine that built the code; the last five only if it has a GPU."""

    device: str
    torch: str | None = None
    commit: str | None = None
    python: str | None = None
    machine: str | None = None
    isa: str | None = None
    cpu: str | None = None
    features: tuple[str, ...] = ()
    threads: int | None = None
    vector_sets: tuple[str, ...] = ()
    hip: str | None = None
    cuda: str | None = None
    triton: str | None = None
    gpu: str | None = None
    capability: str | None = None
    driver: str | None = None


@dataclass(frozen=True)
class Source:
    """A source file that was traced: the hash of its bytes, and of its code."""

    file: str
    sha256: str
    code: str | None


@dataclass(frozen=True)
class TensorLayout:
    """A tensor without its values; integers keep their range, `low` to `high`."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool
    marks: Any
    low: schema.Integer | None = None
    high: schema.Integer | None = None
    sorted: bool = False


@dataclass(frozen=True)
class CallInputs:
    """A call without its values, or why it cannot be generated."""

    form: Structure | None = None
    tensors: tuple[TensorLayout, ...] = ()
    why_not: str | None = None


@dataclass(frozen=True)
class TrainingState:
    """The training mode of a model, and the submodules that are in the other mode."""

    training: bool
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackEntry:
    """The file of a precompiled call, or why there is none."""

    file: str | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class PackedCall:
    """A call of the target; `state` is None if the target is a function.

    `keys` are the cache keys of its graphs.
    """

    inputs: CallInputs
    state: TrainingState | None
    gradients: bool
    keys: tuple[str, ...] = ()
    entry: PackEntry = field(default_factory=PackEntry)


@dataclass(frozen=True)
class CachesDetails:
    """A pack of compiled code for a model that the service builds itself.

    `graphs` are the cache keys of Inductor's graphs, `switches` the settings of torch
    that affect code generation, `attributes` the hashes of the modules' numbers.
    `collectives` says whether a graph has some, between `world_size` ranks; None in
    packs of earlier versions.
    """

    strategy: str
    train: bool
    graphs: tuple[str, ...]
    calls: tuple[PackedCall, ...]
    code: Mapping[str, Source]
    place: Place
    switches: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    collectives: bool | None = None
    world_size: int = 1
    artifact: Literal["caches"] = "caches"


@dataclass(frozen=True)
class PackageDetails:
    """A package, which contains the model itself.

    `without` are the modules of the model's code, which the package must not need.
    """

    artifact: Literal["aoti"]
    device: str
    call: CallSpec
    entrance: InputSpec
    output: Structure
    place: Place
    takes: str = ""
    asked: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def read_details(kind: type[T], contents: Contents) -> T:
    """The details of a pack. Raises `Refused` if they are invalid."""
    try:
        details = schema.build(kind, contents.manifest.details)
        _assert_valid(details)
    except (Mismatch, Unfit) as error:
        raise Refused(f"{_INVALID}: {error}") from None
    return details


def _assert_valid(details: object) -> None:
    """Checks what the types do not say."""
    if isinstance(details, PackageDetails):
        details.entrance.assert_valid()
        details.output.assert_valid(None)
        details.call.arguments.assert_valid(len(details.entrance.tensors))
    if isinstance(details, CachesDetails):
        for number, call in enumerate(details.calls):
            _assert_generable(call.inputs, f"calls[{number}].inputs")


def _assert_generable(inputs: CallInputs, path: str) -> None:
    if inputs.why_not is not None:
        return
    if inputs.form is None:
        raise Unfit(f"{path} has no form")
    for tensor in inputs.tensors:
        fits = math.prod(tensor.shape) <= _MOST_ELEMENTS
        if len(tensor.shape) != len(tensor.stride) or not fits:
            raise Unfit(f"{path} has a tensor with an invalid size")
    inputs.form.assert_valid(len(inputs.tensors))
