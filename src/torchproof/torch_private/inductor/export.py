"""Models exported and compiled ahead of time; the values that tensors give Python."""

from __future__ import annotations

import contextlib
import importlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PROBES: dict[str, tuple[str, ...]] = {
    "ahead-of-time packages": (
        "torch._inductor:aoti_compile_and_package",
        "torch._C._aoti:AOTIModelPackageLoader.boxed_run",
        "torch.fx.experimental._config:backed_size_oblivious",
        "torch.export:ExportedProgram",
    ),
    "values that tensors give to Python": (
        "torch.utils._python_dispatch:TorchDispatchMode.__torch_dispatch__",
    ),
}
_SIZE = re.compile(r"L\['\w+'\]\[(\d+)\]\.size\(\)\[(\d+)\]")
Run = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Exported:
    """A program, the sizes of its inputs, and what export found to hold for them.

    `bounds` are those of each size that is no number; `conditions` compare sizes,
    `sizeI_D` for dimension D of input I, and is None where torch's cannot be told so.
    """

    program: Any
    sizes: tuple[tuple[int | str, ...], ...]
    bounds: Mapping[str, tuple[int, int | None]]
    conditions: tuple[str, ...] | None


def export(
    model: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    changing: Sequence[Sequence[int]],
    *,
    small: bool,
    insist: bool = False,
) -> Exported:
    """The model, whose forward takes `*inputs`, with these dimensions of each changing.

    `small`: sizes 0 and 1 are among them. With `insist`, a size that the model turns
    out to fix is an error, which says why.
    """
    dim = torch.export.Dim
    kind = dim.DYNAMIC if insist else dim.AUTO
    shapes = (tuple(dict.fromkeys(dims, kind) for dims in changing),)
    config = importlib.import_module("torch.fx.experimental._config")
    with config.patch(backed_size_oblivious=small), _quiet():
        program = torch.export.export(
            model, tuple(inputs), dynamic_shapes=shapes, strict=False
        )
    named = set(program.graph_signature.user_inputs)
    values = [
        node.meta["val"]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in named
    ]
    sizes = tuple(
        tuple(s if isinstance(s, int) else str(s) for s in value.shape)
        for value in values
    )
    return Exported(program, sizes, dict(_bounds(program)), _conditions(program))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of its own use of its own parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _bounds(program: Any) -> Iterator[tuple[str, tuple[int, int | None]]]:
    for expression, limits in program.range_constraints.items():
        high = int(limits.upper) if limits.upper.is_Integer else None
        yield str(expression), (int(limits.lower), high)


def _conditions(program: Any) -> tuple[str, ...] | None:
    """What export assumed of the sizes, and neither it nor the code will look at."""
    conditions = []
    for guard in program._guards_code or ():
        text = _SIZE.sub(r"size\1_\2", guard)
        if "[" in text:
            return None
        conditions.append(text)
    return tuple(conditions)


def compile_package(program: Any, file: Path) -> None:
    inductor = importlib.import_module("torch._inductor")
    with _quiet():
        inductor.aoti_compile_and_package(program, package_path=str(file))


def load_package(file: Path, device: int) -> Run:
    """What a package runs; `device` is the index of a CUDA device, or -1.

    Inductor's own function would import the compiler first, which takes seconds.
    """
    loader = importlib.import_module("torch._C._aoti").AOTIModelPackageLoader
    package = loader(str(file), "model", False, 1, device)

    def run(tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        # It empties the list that it is given.
        answer: Sequence[torch.Tensor] = package.boxed_run(list(tensors))
        return answer

    return run


class ScalarReads(TorchDispatchMode):
    """`note(value)` whenever an operation on tensors gives Python a plain value."""

    def __init__(self, note: Callable[[Any], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        if isinstance(value, bool | int | float | complex):
            self._note(value)
        return value
