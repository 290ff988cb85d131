"""The JSON of the fields of records that have no class of their own.

They are mappings, in which unknown keys of a newer version stay. Type checkers read the
shapes, and so does the check of a saved run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from torchproof.records.mappings import JsonObject, Keywords
from torchproof.records.schema import Error

Values = Mapping[str, str | int | float | bool | None]
Totals = Mapping[str, float | None]  # the counts of a whole run


class Counts(TypedDict, total=False):
    """What the compiler did for one strategy."""

    graphs: int | None
    graph_breaks: int | None
    recompiles: int | None
    artifacts: int | None
    guards: int | None
    while_timed: int | None  # compilations
    # By the name of a block.
    artifacts_of: Mapping[str, int | None] | None
    blocks_of: Mapping[str, int | None] | None


class Gpu(TypedDict, total=False):
    name: str | None
    memory_bytes: int | None
    capability: str | None


class Environment(TypedDict, total=False):
    python: str | None
    platform: str | None
    machine: str | None
    cores: int | None
    threads: int | None
    torch: str | None
    cuda: str | None
    triton: str | None
    device: str | None
    gpu: str | None
    gpus: tuple[Gpu, ...] | None
    cudnn: int | None
    driver: str | None
    commit: str | None
    dirty: bool | None
    size: str | None
    train: bool | None
    ranks: int | None  # of a measurement on several
    wrap: str | None
    variables: Values | None


class Options(TypedDict, total=False):
    """The options of a check."""

    arguments: tuple[str, ...] | None
    compile: Keywords | None
    as_written: bool | None
    train: bool | None
    device: str | None
    size: str | None
    effort: str | None
    ranks: int | None
    wrap: str | None
    session: str | None


# What identifies a model; a class body cannot have a field `class`.
Fingerprint = TypedDict(
    "Fingerprint",
    {
        "class": str,
        "parameters": int | None,  # None, and no structure, for a function
        "structure": str | None,
        "code": Mapping[str, str | None],  # hashes by file; None if it has no source
    },
    total=False,
)


class Start(TypedDict, total=False):
    """A first call, with its cache hits and misses."""

    label: str | None
    refused: str | None
    first_call_s: float | None
    imports_s: float | None
    later_compile_s: float | None
    hits: int | None
    misses: int | None
    bypasses: int | None


class Numerics(TypedDict, total=False):
    verdict: str | None
    max_rel_error: Annotated[float | None, Error | None]
    eager_error: Annotated[float | None, Error | None]
    reference: str | None
    where: str | None
    why: str | None
    how: str | None  # what is wrong: value, nan, infinity or form
    rank: int | None  # of several: the one with the worst verdict
    forms: tuple[JsonObject, ...] | None  # differences in dtypes and sizes


class Tail(TypedDict, total=False):
    """The samples that the 95th percentile is of."""

    samples: int | None  # all that were timed
    interrupted: int | None  # of them: the process lost its core meanwhile
    collector: str | None  # whether garbage was collected meanwhile


class Guards(TypedDict, total=False):
    guards: int | None
    lookup_us: float | None
    lookup_range_us: tuple[float, float] | None  # the quartiles
    share: float | None
    not_checked: Mapping[str, int | None] | str | None


class Kernels(TypedDict, total=False):
    per_step: float | None
    busy_share: float | None
    kernel_ms: float | None
    generated_ms: float | None


class Flops(TypedDict, total=False):
    """Floating-point operations of a call in eager, and what bounds their speed."""

    per_step: float | None
    by_type: Mapping[str, float] | None
    not_counted: tuple[str, ...] | None
    per_second: float | None
    peak_tflops: Mapping[str, float] | None
    devices: int | None
    why: str | None


class Probe(TypedDict, total=False):
    """What a search learned from eager; what is not known is None."""

    calls: int
    step_ms: float | None
    ops_per_call: float | None
    host_syncs: float | None
    # Of torch's profiler: on a GPU, else on a CPU.
    kernels_per_call: float | None
    device_ms: float | None
    busy_share: float | None
    operators_us: float | None
    operator_share: float | None
    mean_op_us: float | None
    matmul_share: float | None
    bound: str | None
    bound_why: str | None
    blocks: Mapping[str, int] | None  # how often each repeats
    core: tuple[str, ...] | None  # parts and methods with many parameters
    varying: tuple[tuple[Any, ...], ...] | None  # names of arguments, and their sizes
    fingerprint: Fingerprint | None
    unknown: Mapping[str, str] | None  # why a measurement failed
    unavailable: Mapping[str, str] | None  # settings, and why they do not apply


class Recipe(TypedDict, total=False):
    """The recipe of a search, as far as reports show it."""

    lines: str | None
    train: bool | None
