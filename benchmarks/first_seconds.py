"""The first seconds of a step: eager, reduce-overhead, and graph(wait=False).

    python -m benchmarks.first_seconds [ROW ...] [--length SECONDS]

A row is a step under a strategy, alone in a process of its own with empty caches of the
compiler. It calls the step again and again, waits for the device after each call, and
notes when each answer came. Importing torch and torchproof is not counted. Exit code 1
when a target below is missed. Needs a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchproof
from benchmarks.survey import Options, Row, Survey

SECONDS = 30.0
EAGER_SECONDS = 3.0
STRATEGIES = ("eager", "reduce-overhead", "progressive")
SEPARATOR = " / "
# The first answer against eager's, the longest pause against the compile time of
# reduce-overhead, the 99th percentile against the median while compiling, and the steps
# in the first seconds against those of reduce-overhead.
TARGETS = {"first": 1.1, "pause": 0.2, "p99": 1.5, "steps": 5.0}


# -- models ----------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, -1, self.heads, width // self.heads)
        query = self.query(x).view(heads).transpose(1, 2)
        key, value = self.key_value(context).chunk(2, dim=-1)
        mixed = F.scaled_dot_product_attention(
            query,
            key.reshape(heads).transpose(1, 2),
            value.reshape(heads).transpose(1, 2),
            is_causal=self.causal,
        )
        answer: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return answer


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * scaled.to(x.dtype)


class Block(nn.Module):
    def __init__(self, width: int, *, causal: bool, cross: bool = False) -> None:
        super().__init__()
        heads = width // 64
        self.norm, self.norm_up = Norm(width), Norm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.cross = Attention(width, heads, causal=False) if cross else None
        self.norm_cross = Norm(width) if cross else None
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        inner = self.norm(x)
        x = x + self.attention(inner, inner)
        if self.cross is not None and self.norm_cross is not None:
            assert context is not None
            x = x + self.cross(self.norm_cross(x), context)
        inner = self.norm_up(x)
        answer: Tensor = x + self.down(F.silu(self.gate(inner)) * self.up(inner))
        return answer


class Decoder(nn.Module):
    def __init__(self, depth: int, width: int, words: int = 32_000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, causal=True) for _ in range(depth))
        self.norm = Norm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Vision(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, 196, width))
        self.blocks = nn.ModuleList(Block(width, causal=False) for _ in range(depth))
        self.head = nn.Linear(width, 1000)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x.mean(1))
        return logits


class Audio(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(80, width, 3, padding=1),
            nn.GELU(),
            nn.Conv1d(width, width, 3, stride=2, padding=1),
            nn.GELU(),
        )
        self.blocks = nn.ModuleList(Block(width, causal=False) for _ in range(depth))
        self.norm = Norm(width)

    def forward(self, frames: Tensor) -> Tensor:
        x = self.front(frames).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        answer: Tensor = self.norm(x)
        return answer


class EncoderDecoder(nn.Module):
    def __init__(self, depth: int, width: int, words: int = 8_000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.encoder = nn.ModuleList(Block(width, causal=False) for _ in range(depth))
        self.decoder = nn.ModuleList(
            Block(width, causal=True, cross=True) for _ in range(depth)
        )
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        context = self.embed(ids)
        for block in self.encoder:
            context = block(context)
        before = labels.new_zeros(labels.shape)
        before[:, 1:] = labels[:, :-1]
        before[:, 0] = 2  # the start of a sentence
        x = self.embed(before)
        for block in self.decoder:
            x = block(x, context)
        logits: Tensor = self.head(x)
        return logits


def words(*shape: int) -> Tensor:
    return torch.randint(3, 8_000, shape, device="cuda")


def training(model: nn.Module) -> Callable[..., Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)

    def step(*args: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits = model(*args)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), args[-1].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


def _pixels() -> tuple[Tensor, ...]:
    return (torch.randn(4, 3, 224, 224, device="cuda", dtype=torch.bfloat16),)


def _frames() -> tuple[Tensor, ...]:
    return (torch.randn(4, 80, 1000, device="cuda", dtype=torch.bfloat16),)


# How a model is made, one call, and whether it is trained.
STEPS: dict[
    str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], bool]
] = {
    "decoder": (lambda: Decoder(20, 1024), lambda: (words(1, 256),), False),
    "vision": (lambda: Vision(12, 768), _pixels, False),
    "audio": (lambda: Audio(8, 512), _frames, False),
    "decoder-training": (lambda: Decoder(12, 768), lambda: (words(4, 256),), True),
    "encoder-decoder-training": (
        lambda: EncoderDecoder(8, 512),
        lambda: (words(8, 128), words(8, 128)),
        True,
    ),
}


# -- one row ---------------------------------------------------------------------------


def measure(name: str, options: Options) -> Row:
    step_name, strategy = name.split(SEPARATOR)
    make, call, trains = STEPS[step_name]
    seconds = min(options.length, EAGER_SECONDS if strategy == "eager" else SECONDS)
    torch.manual_seed(0)
    model = make().to("cuda", torch.bfloat16).train(trains)
    args = call()
    step: Callable[..., Any] = training(model) if trains else model
    torch.set_grad_enabled(trains)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    graphed = None
    if strategy == "reduce-overhead":
        step = torch.compile(step, mode="reduce-overhead")
    elif strategy == "progressive":
        step = graphed = torchproof.graph(step, wait=False)
    answers: list[float] = []
    while not answers or answers[-1] < seconds:
        step(*args)
        torch.cuda.synchronize()
        answers.append(time.perf_counter() - begin)
    row = summary(answers, seconds)
    row["reserved_bytes"] = torch.cuda.max_memory_reserved()
    if graphed is not None:
        status = graphed.status()
        row["stages"] = status.to_json()["stages"]
        row["stops"] = [str(each) for each in status.stops]
        row["changes"] = list(status.changes)
        row |= while_compiling(answers, row["stages"])
    return row


def summary(answers: list[float], seconds: float) -> Row:
    gaps = [b - a for a, b in itertools.pairwise(answers)]
    return {
        "first_s": answers[0],
        "steps": sum(each <= seconds for each in answers),
        "longest_pause_s": max(gaps, default=None),
        "step_ms": 1e3 * statistics.median(gaps[-200:]) if gaps else None,
    }


def while_compiling(answers: list[float], stages: list[Row]) -> Row:
    """The steps from the first recording until the last stage took over."""
    ends = [each["at_s"] for each in stages if each["at_s"] is not None]
    if not ends:
        return {}
    gaps = sorted(
        b - a for a, b in itertools.pairwise(answers) if min(ends) < a and b < max(ends)
    )
    if len(gaps) < 100:
        return {}
    return {
        "median_ms": 1e3 * statistics.median(gaps),
        "p99_ms": 1e3 * gaps[int(0.99 * len(gaps))],
    }


# -- all rows --------------------------------------------------------------------------


def by_step(found: dict[str, Row]) -> dict[str, dict[str, Row]]:
    """The rows of each step, by strategy."""
    steps: dict[str, dict[str, Row]] = {}
    for name, row in found.items():
        step, strategy = name.split(SEPARATOR)
        steps.setdefault(step, {})[strategy] = row
    return steps


def ratios(rows: dict[str, Row]) -> dict[str, float | None]:
    """What is promised, against the other strategies; None without a figure."""
    eager, theirs, ours = (rows.get(strategy, {}) for strategy in STRATEGIES)
    return {
        "first": ratio(ours.get("first_s"), eager.get("first_s")),
        "pause": ratio(ours.get("longest_pause_s"), theirs.get("first_s")),
        "p99": ratio(ours.get("p99_ms"), ours.get("median_ms")),
        "steps": ratio(ours.get("steps"), theirs.get("steps")),
    }


def ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def failures(found: dict[str, Row]) -> Iterator[str]:
    for step, rows in by_step(found).items():
        for name, value in ratios(rows).items():
            limit = TARGETS[name]
            if value is None:
                continue
            if value < limit if name == "steps" else value > limit:
                yield f"{step}: {name} is {value:.2f}, target {limit}"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--length", type=float, default=SECONDS, help="seconds a row")


SURVEY = Survey(
    "first_seconds",
    lambda options: [f"{s}{SEPARATOR}{each}" for s in STEPS for each in STRATEGIES],
    measure,
    failures,
    devices=("cuda",),
    arguments=_arguments,
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
