"""Writes candidates of the graphs that Dynamo captures while a target runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.graphs.graph_reducer import operations
from torchproof.packs.repro.graphs.graph_source import (
    NotPortable,
    contexts_now,
    graph_source,
    plain_graph,
)
from torchproof.packs.repro.tensor_source import extent
from torchproof.torch_private import replace_backends, without_regions

_CALLS = 3  # CUDA graphs replay from the third call on
_MAX_BYTES = 2**26  # of the recorded inputs of one graph, to keep packs small
_ABOUT = "the torch operations of one captured graph, with neutral names"


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
        recording = _Recording(gm, origin, folder=folder, weights=weights)
        uncompiled = without_regions(gm)
        calls = 0

        def call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            try:
                if calls == 1:
                    recording.read(args)
                if recording.is_complete and calls <= _CALLS:
                    write(recording.candidate(calls))
            except NotPortable as reason:
                refuse(f"graph {origin}: {reason}")
            return uncompiled(*args)

        return call

    return replace_backends(run)


class _Recording:
    """One graph and the values of its first call."""

    def __init__(
        self, gm: fx.GraphModule, origin: str, *, folder: Path, weights: bool
    ) -> None:
        self._gm = gm
        self._origin = origin
        self._folder = folder / re.sub(r"\W", "_", origin)
        self._weights = weights
        self._sources: list[tuple[str, str, Mapping[str, str]]] = []

    @property
    def is_complete(self) -> bool:
        return bool(self._sources)

    def read(self, args: Sequence[Any]) -> None:
        """Writes the source with synthetic, recorded inputs, and recorded weights."""
        gm, tensors = plain_graph(self._gm, args)
        nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
        named = {node.name: value for node, value in zip(nodes, tensors, strict=True)}
        variants = [("synthetic inputs and weights", "")]
        variants.append(("recorded inputs and synthetic weights", "x"))
        if self._weights:
            variants.append(("recorded inputs and weights", "xwb"))
        contexts = contexts_now()
        for about, roles in variants:
            saved = {k: v for k, v in named.items() if k[0] in roles}
            files = self._save(saved)
            if roles and not files:
                continue
            source = graph_source(gm, tensors, contexts=contexts, files=files)
            paths = {name: str(self._folder / name) for name in files.values()}
            self._sources.append((source, f"{_ABOUT}, with {about}", paths))

    def candidate(self, calls: int) -> Candidate:
        """Returns the synthetic candidate; its record holds the other variants."""
        variants = [
            {"source": _with_calls(source, calls), "about": about, "files": dict(files)}
            for source, about, files in self._sources
        ]
        source, about, _ = self._sources[0]
        return Candidate(
            form="graph",
            source=_with_calls(source, calls),
            about=about,
            size=operations(source),
            origin=self._origin,
            record={"variants": variants[1:]},
        )

    def _save(self, tensors: Mapping[str, Tensor]) -> dict[str, str]:
        """Saves tensors and returns their files; {} if they are too large."""
        if sum(value.numel() * value.itemsize for value in tensors.values()) > (
            _MAX_BYTES
        ):
            return {}
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, value in tensors.items():
            torch.save(_without_storage(value), self._folder / f"{name}.pt")
        return {name: f"{name}.pt" for name in tensors}


def _with_calls(source: str, calls: int) -> str:
    start, _, end = source.rpartition("range(1)")
    return f"{start}range({calls}){end}"


def _without_storage(value: Tensor) -> Tensor:
    """Copies a tensor: torch.save of a view would write its whole storage."""
    value = value.detach().cpu()
    if value.is_contiguous() or not value.numel():
        return value.clone()
    steps = list(zip(value.shape, value.stride(), strict=True))
    once = [size if step else 1 for size, step in steps]
    flat = torch.zeros(extent(value), dtype=value.dtype)
    flat.as_strided(once, value.stride()).copy_(
        value[tuple(slice(0, size) for size in once)]
    )
    return flat
