"""The reference models: a registry that is read without importing torch.

A workload module defines `make(size, batch, sequence, *, device, train)`, `sequence`
only where the model has one. It returns `(fn, calls)`, both on the device. An `fn` whose
`compiles_itself` is true does its own compiling inside; one whose `trains_itself` is true
runs its own backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """Where a workload is defined, what it shows, and its sizes with parameters."""

    module: str
    summary: str
    sizes: Mapping[str, int]
    gpu_size: str

    def size_on(self, device: str) -> str:
        """The size to take where none is asked for."""
        return self.gpu_size if device == "cuda" else "tiny"


_GPT = {"tiny": 921_600, "small": 162_441_216}

WORKLOADS: dict[str, Workload] = {
    "gpt": Workload(
        "torchproof.workloads.gpt",
        "pre-norm decoder with rotary positions; one graph, one settled recompile",
        _GPT,
        "small",
    ),
    "gpt-original": Workload(
        "torchproof.workloads.gpt_original",
        "the same decoder as people write it: breaks, recompiles, recompile limit",
        _GPT,
        "small",
    ),
}
