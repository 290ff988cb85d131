"""The first seconds of a step: eager, reduce-overhead, and graph(wait=False).

    python benchmarks/first_seconds.py [ROW ...] [--seconds N] [--out FILE]
        [--again [ARM ...]]

Each arm runs alone in a process of its own with empty caches of the compiler. It calls
the step again and again, waits for the device after each call, and notes when each
answer came. Importing torch and torchproof is not counted. A row goes to FILE as it
ends; arms that are there are left out, unless they are to be measured again. Exit code
1 when a target below is missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchproof

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "first-seconds-h200.json"
SECONDS = 30.0
EAGER_SECONDS = 3.0
# Of a run that is not counted. It leaves files in the system's cache, and the bytecode
# that installed packages have.
WARM_SECONDS = 12.0
ARMS = ("eager", "reduce-overhead", "progressive")
# The first answer against eager's, the longest pause against the compile time of
# reduce-overhead, the 99th percentile against the median while compiling, and the steps
# in the first seconds against those of reduce-overhead.
TARGETS = {"first": 1.1, "pause": 0.2, "p99": 1.5, "steps": 5.0}

Row = dict[str, Any]


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
ROWS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], bool]] = {
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


# -- one arm, in a process of its own --------------------------------------------------


def measured(name: str, arm: str, seconds: float) -> Row:
    make, call, trains = ROWS[name]
    torch.manual_seed(0)
    model = make().to("cuda", torch.bfloat16).train(trains)
    args = call()
    step: Callable[..., Any] = training(model) if trains else model
    torch.set_grad_enabled(trains)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    graphed = None
    if arm == "reduce-overhead":
        step = torch.compile(step, mode="reduce-overhead")
    elif arm == "progressive":
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


# -- all arms --------------------------------------------------------------------------


def in_process(name: str, arm: str, seconds: float) -> Row:
    seconds = min(seconds, EAGER_SECONDS) if arm == "eager" else seconds
    with tempfile.TemporaryDirectory() as caches:
        variables = {
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
            "TRITON_CACHE_DIR": f"{caches}/triton",
        }
        done = subprocess.run(
            [sys.executable, __file__, "--arm", arm, "--seconds", str(seconds), name],
            capture_output=True,
            text=True,
            check=False,
            env=_with_bytecode() | variables,
        )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def _with_bytecode() -> dict[str, str]:
    """The environment, in which Python keeps the bytecode of what it imports."""
    kept = dict(os.environ)
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept


def ratios(arms: dict[str, Row]) -> Row:
    """What is promised, against the other arms; None where an arm has no figure."""
    eager, theirs, ours = (arms.get(arm, {}) for arm in ARMS)
    return {
        "first": _ratio(ours.get("first_s"), eager.get("first_s")),
        "pause": _ratio(ours.get("longest_pause_s"), theirs.get("first_s")),
        "p99": _ratio(ours.get("p99_ms"), ours.get("median_ms")),
        "steps": _ratio(ours.get("steps"), theirs.get("steps")),
        "step": _ratio(ours.get("step_ms"), theirs.get("step_ms")),
    }


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def missed(row: Row) -> list[str]:
    found = row["ratios"]
    return [
        name
        for name, limit in TARGETS.items()
        if found[name] is None
        or (found[name] < limit if name == "steps" else found[name] > limit)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", nargs="*", choices=ARMS)
    parser.add_argument("--arm", choices=ARMS)
    options = parser.parse_args()
    again = ARMS if options.again == [] else options.again or ()
    if unknown := [name for name in options.rows if name not in ROWS]:
        parser.error(f"no row {unknown[0]!r}: choose from {', '.join(ROWS)}")
    if options.arm is not None:
        print(json.dumps(measured(options.rows[0], options.arm, options.seconds)))
        return 0
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    rows = known.setdefault("rows", {})
    known |= {
        "command": "python benchmarks/first_seconds.py",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "torchproof": metadata_version(),
        "seconds": options.seconds,
    }
    in_process("vision", "progressive", WARM_SECONDS)
    for name in options.rows or ROWS:
        row = rows.setdefault(name, {"arms": {}})
        arms = row["arms"]
        for arm in ARMS:
            if arm not in arms or arm in again:
                arms[arm] = in_process(name, arm, options.seconds)
        row["ratios"] = ratios(arms)
        options.out.write_text(json.dumps(known, indent=1) + "\n")
        print(name, json.dumps(rows[name]["ratios"]), file=sys.stderr, flush=True)
    return int(any(missed(row) for row in rows.values()))


def metadata_version() -> str:
    try:
        return metadata.version("torchproof")
    except metadata.PackageNotFoundError:
        return "source"


if __name__ == "__main__":
    sys.exit(main())
