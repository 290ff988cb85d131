"""The registry of bundled reference models, which does not import torch.

A workload module defines `make(size, batch, sequence, *, device, train)`; `sequence` is
missing if the model has no sequence. It returns `(fn, calls)`, both on the device. If
the class of `fn` sets `compiles_itself`, `fn` calls torch.compile itself. If it sets
`trains_itself`, `fn` runs its own backward.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torchproof.records import Keywords

_PACKAGE = "torchproof.targets.workloads"
Unit = Literal["tokens", "images"]


@dataclass(frozen=True)
class Workload:
    """The module of a workload, what it shows, and the parameter count of each size.

    `arguments` of `make` tell the workloads of one module apart.
    """

    name: str  # of the module
    summary: str
    sizes: Mapping[str, int]
    gpu_size: str
    unit: Unit | None  # of the work of a call
    arguments: Keywords = field(default_factory=dict, hash=False)

    @property
    def module(self) -> str:
        return f"{_PACKAGE}.{self.name}"

    @property
    def fp8(self) -> bool:
        """Almost all weights take one byte, and the model cannot be trained."""
        return bool(self.arguments.get("fp8"))

    @property
    def call_work(self) -> Callable[[Any], tuple[float, str]] | None:
        """The amount of work of a call, by the sizes of its first tensor."""
        if (unit := self.unit) is None:
            return None

        def work(call: Any) -> tuple[float, str]:
            first = next(iter(call.values() if isinstance(call, dict) else call))
            sizes = first.shape[: 2 if unit == "tokens" else 1]
            return float(math.prod(sizes)), unit

        return work

    def make(self, *args: Any, **options: Any) -> tuple[Any, list[Any]]:
        """Calls `make` of the module; imports torch."""
        module: Any = importlib.import_module(self.module)
        made: tuple[Any, list[Any]] = module.make(*args, **self.arguments, **options)
        return made

    def size_on(self, device: str) -> str:
        """The default size on a device."""
        return self.gpu_size if device == "cuda" else "tiny"


_GPT = {
    "tiny": 924_416,
    "small": 254_179_328,
    "medium": 834_493_440,
    "large": 1_414_647_808,
    "xl": 2_775_208_960,
    "5b": 8_467_292_160,
    "10b": 16_247_091_200,
    "20b": 27_802_030_080,
    "40b": 39_484_014_592,
    "50b": 65_257_226_240,
    "70b": 70_089_703_424,
    "100b": 126_872_678_400,
}


def _with_original(fixed: Workload, defects: str) -> dict[str, Workload]:
    """A workload, and the same before the fixes, which has these defects."""
    before = f"the same before the fixes: {defects}"
    original = replace(fixed, name=f"{fixed.name}_original", summary=before)
    return {fixed.name: fixed, f"{fixed.name}-original": original}


WORKLOADS: dict[str, Workload] = {
    **_with_original(
        Workload(
            "nanovlm",
            "vision-language model; one graph for all batches, lengths, image counts",
            {
                "tiny": 223_232,
                "debug": 19_628_544,
                "large": 145_745_664,
                "vanilla": 460_113_984,
            },
            "large",
            "tokens",
        ),
        "graph breaks, recompiles, lists and None",
    ),
    **_with_original(
        Workload(
            "gpt",
            "pre-norm decoder, up to 127B parameters; one graph for all shapes",
            _GPT,
            "small",
            "tokens",
        ),
        "graph breaks, recompiles, recompile limit",
    ),
    "gpt-flex": Workload(
        "gpt",
        "the gpt decoder with FlexAttention and a sliding window",
        _GPT,
        "small",
        "tokens",
        {"attention": "flex"},
    ),
    "gpt-fp8": Workload(
        "gpt",
        "the gpt decoder with FP8 weights, a scale per row; inference only",
        _GPT,
        "small",
        "tokens",
        {"fp8": True},
    ),
    "decoder": Workload(
        "decoder",
        "24 narrow layers, one shape: kernel launches take longer than kernels",
        {"tiny": 793_088, "base": 75_657_216},
        "base",
        "tokens",
    ),
    **_with_original(
        Workload(
            "arrcoc",
            "ViT-B/16, three relevance maps, trainable patch selection; one graph",
            {"tiny": 190_483, "base": 88_457_451},
            "base",
            "images",
        ),
        "tensor values read in Python, graph breaks",
    ),
    "arrcoc-scorers": Workload(
        "arrcoc",
        "only the three scorers: entropy, Sobel edges, fit to a query; one graph",
        {"tiny": 8_320, "base": 1_181_184},
        "base",
        "images",
        {"scorers": True},
    ),
    **_with_original(
        Workload(
            "trainstep",
            "a step with AdamW, schedule, clipping, autocast; two graphs, no sync",
            {"tiny": 16_864, "base": 33_608_704},
            "base",
            "tokens",
        ),
        "float rate, .item() logging, backward inside",
    ),
    **_with_original(
        Workload(
            "megacontext",
            "GPT over a mix of tokens and summaries: training step and session",
            {"tiny": 369_729, "base": 218_639_617},
            "base",
            None,
        ),
        "recompile limit, base model runs eager",
    ),
}
