"""torch.export, AOTInductor packages, and a mode that sees tensors read as numbers."""

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

from torchproof.torch_private import contract

_SIZE = re.compile(r"L\['\w+'\]\[(\d+)\]\.size\(\)\[(\d+)\]")
Run = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Exported:
    """An exported program, the sizes of its inputs, and the constraints on them.

    `bounds` has the range of each symbolic size. `conditions` compare sizes, written as
    `sizeI_D` for dimension D of input I; None if torch's guards have another form.
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
    """Exports a model whose forward takes `*inputs`.

    `changing` lists the dynamic dimensions of each input, `small` whether their sizes
    include 0 and 1. With `insist`, export raises if the model specialises such a size.
    """
    contract.require("load")
    dim = torch.export.Dim
    kind = dim.DYNAMIC if insist else dim.AUTO
    shapes = (tuple(dict.fromkeys(dims, kind) for dims in changing),)
    config = importlib.import_module("torch.fx.experimental._config")
    with config.patch(backed_size_oblivious=small), _quiet():
        program = torch.export.export(
            model, tuple(inputs), dynamic_shapes=shapes, strict=False
        )
    inputs_of_user = set(program.graph_signature.user_inputs)
    values = [
        node.meta["val"]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in inputs_of_user
    ]
    sizes = tuple(
        tuple(s if isinstance(s, int) else str(s) for s in value.shape)
        for value in values
    )
    return Exported(
        program=program,
        sizes=sizes,
        bounds=dict(_bounds(program)),
        conditions=_conditions(program),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides torch's deprecation warnings about its own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _bounds(program: Any) -> Iterator[tuple[str, tuple[int, int | None]]]:
    for expression, limits in program.range_constraints.items():
        high = int(limits.upper) if limits.upper.is_Integer else None
        yield str(expression), (int(limits.lower), high)


def _conditions(program: Any) -> tuple[str, ...] | None:
    """The guards on sizes that export assumed; compiled code does not check them."""
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
    """Loads a package; `device` is the index of a CUDA device, or -1 for the CPU.

    Inductor's own loader would first import the compiler, which takes seconds.
    """
    loader = importlib.import_module("torch._C._aoti").AOTIModelPackageLoader
    package = loader(str(file), "model", False, 1, device)

    def run(tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        # `boxed_run` empties its argument.
        outputs: Sequence[torch.Tensor] = package.boxed_run(list(tensors))
        return outputs

    return run
