"""Bench runs made by hand: rows whose samples are drawn from a seed."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

from torchproof.records.run import Measurement, Run

ENVIRONMENT = {
    "torch": "2.13.0+cpu",
    "python": "3.11.7",
    "device": "cpu",
    "machine": "x86_64",
    "cores": 2,
    "threads": 2,
    "size": None,
}
WRONG = {"verdict": "wrong", "numerics": {"verdict": "wrong", "why": "call 0 differs"}}


def rounds(
    ms: float, *, seed: int = 0, noise: float = 0.02, count: int = 12
) -> tuple[tuple[float, ...], ...]:
    """Rounds of ten samples; half of the noise is a round's, half a sample's."""
    draw = random.Random(f"{seed} {ms}")
    middles = [ms * (1 + draw.gauss(0, noise / 2)) for _ in range(count)]
    return tuple(
        tuple(round(m * (1 + draw.gauss(0, noise / 2)), 6) for _ in range(10))
        for m in middles
    )


def row(strategy: str, ms: float, *, eager_ms: float = 1.0, **more: Any) -> Measurement:
    """A row at `ms`; `noise`, `seed` and `count` shape its rounds."""
    shape = {k: more.pop(k) for k in ("seed", "noise", "count") if k in more}
    samples = rounds(ms, **shape)
    every = sorted(x for each in samples for x in each)
    half = shape.get("noise", 0.02)
    plain: dict[str, Any] = {
        "median_ms": ms,
        "low_ms": ms * (1 - half / 2),
        "high_ms": ms * (1 + half / 2),
        "samples": len(every),
        "outliers": 0,
        "p95_ms": statistics.quantiles(every, n=20)[-1],
        "rounds_ms": samples,
        "first_call_s": 0.01 if strategy == "eager" else 12.0,
        "start": {"label": "cold", "hits": 0, "misses": 3, "bypasses": 0},
        "peak_bytes": 512 * 2**20,
        "numerics": {"verdict": "same", "max_rel_error": None},
        "verdict": "reference",
        "source": f"model = torch.compile(model)  # {strategy}",
    }
    if strategy != "eager":
        gain = eager_ms / ms
        low, high = gain * (1 - half), gain * (1 + half)
        word = f"{gain:.2f}x faster" if gain >= 1 else f"{1 / gain:.2f}x slower"
        verdict = word if low > 1 or high < 1 else "not significant"
        plain |= {"vs_eager": gain, "vs_eager_low": low, "vs_eager_high": high}
        plain |= {"verdict": verdict, "counts": {"graph_breaks": 0, "recompiles": 0}}
        plain |= {"break_even": "after 24 steps", "break_even_steps": 24}
    return Measurement(strategy, **{**plain, **more})


def bench(rows: Sequence[Measurement], **more: Any) -> Run:
    plain: dict[str, Any] = {
        "id": "20260102-0304-model",
        "target": "model.py:make",
        "strategy": "as-written",
        "environment": ENVIRONMENT,
        "counts": {},
        "measurements": tuple(rows),
        "verb": "bench",
    }
    return Run(**{**plain, **more})
