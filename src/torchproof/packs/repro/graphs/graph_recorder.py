"""Writes candidates of the graphs that Dynamo captures while a target runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.graphs.expressions import NotPortable
from torchproof.packs.repro.graphs.fx_reader import (
    Reader,
    RecordingInterpreter,
    tensors_of,
)
from torchproof.packs.repro.graphs.graph_ir import GraphIR, Input
from torchproof.packs.repro.graphs.variants import RecordedGraph, to_candidate
from torchproof.torch_private import replace_backends, without_regions

_CALLS = 3  # CUDA graphs replay from the third call on
_MAX_BYTES = 2**26  # of the recorded inputs of one graph, to keep packs small


def recorder(
    write: Callable[[Candidate], None],
    folder: Path,
    *,
    weights: bool = False,
    refuse: Callable[[str], None] = lambda reason: None,
) -> AbstractContextManager[None]:
    """Returns a context in which captured graphs run uncompiled and are recorded.

    It writes a candidate at the first call of a graph, and again, with the same origin,
    at the next calls. Input tensors are saved to `folder`; with `weights`, weights too.
    """

    def run(gm: fx.GraphModule, origin: str) -> Callable[..., Any]:
        return _Recording(
            gm, origin, write=write, folder=folder, weights=weights, refuse=refuse
        )

    return replace_backends(run)


class _Recording:
    """Runs one graph in place of its compiled code, and records it."""

    def __init__(
        self,
        gm: fx.GraphModule,
        origin: str,
        *,
        write: Callable[[Candidate], None],
        folder: Path,
        weights: bool,
        refuse: Callable[[str], None],
    ) -> None:
        self._gm = gm
        self._plain = without_regions(gm)
        self._origin = origin
        self._write = write
        self._refuse = refuse
        self._folder = folder / re.sub(r"\W", "_", origin)
        self._weights = weights
        self._recorded: RecordedGraph | None = None
        self._calls = 0

    def __call__(self, *args: Any) -> Any:
        self._calls += 1
        if self._calls == 1:
            return self._first(args)
        if self._recorded is not None and self._calls <= _CALLS:
            graph = replace(self._recorded.graph, calls=self._calls)
            self._recorded = replace(self._recorded, graph=graph)
            self._write(to_candidate(self._recorded))
        return self._plain(*args)

    def _first(self, args: tuple[Any, ...]) -> Any:
        reader = Reader(self._gm)
        try:
            reader.read_inputs(args)
            reader.read_lines()
            files = self._save_inputs(reader.inputs, args)
        except NotPortable as reason:
            self._refuse(f"graph {self._origin}: {reason}")
            return self._plain(*args)
        try:
            return RecordingInterpreter(self._plain, reader).run(*args)
        finally:
            self._write_first(reader.graph_ir(), files)

    def _write_first(self, graph: GraphIR, files: dict[str, str]) -> None:
        self._recorded = RecordedGraph(graph, self._origin, str(self._folder), files)
        self._write(to_candidate(self._recorded))

    def _save_inputs(
        self, inputs: list[Input], args: tuple[Any, ...]
    ) -> dict[str, str]:
        """Saves input tensors and returns their files; {} if they are too large."""
        tensors = tensors_of(self._gm, args)
        saved = [
            (entry, value)
            for entry, value in zip(inputs, tensors, strict=False)
            if entry.role == "input" or self._weights
        ]
        if sum(value.numel() * value.itemsize for _, value in saved) > _MAX_BYTES:
            return {}
        self._folder.mkdir(parents=True, exist_ok=True)
        for entry, value in saved:
            torch.save(_without_storage(value), self._folder / f"{entry.name}.pt")
        return {entry.name: f"{entry.name}.pt" for entry, _ in saved}


def _without_storage(value: Tensor) -> Tensor:
    """Copies a tensor: torch.save of a view would write its whole storage."""
    value = value.detach().cpu()
    if value.is_contiguous() or not value.numel():
        return value.clone()
    steps = list(zip(value.shape, value.stride(), strict=True))
    extent = 1 + sum((size - 1) * step for size, step in steps)
    once = [size if step else 1 for size, step in steps]
    flat = torch.zeros(extent, dtype=value.dtype)
    flat.as_strided(once, value.stride()).copy_(
        value[tuple(slice(0, size) for size in once)]
    )
    return flat
