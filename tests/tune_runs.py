"""Tune runs made by hand: trials of all outcomes, and what was chosen of them."""

from __future__ import annotations

from typing import Any

import bench_runs

from torchproof.records import Run, Tuning

SOURCE = "from torchproof import regions\nregions.compile(model)"
CHOSEN = "regional+graph"
SWITCH = "full, coordinate_descent_tuning=True"
EAGER_MS = 3.1


def trial(name: str, step_ms: float | None = None, **more: Any) -> dict[str, Any]:
    """A trial as a search records it; without a time nothing was measured."""
    measured = step_ms is not None
    gain = EAGER_MS / step_ms if step_ms and name != "eager" else None
    plain: dict[str, Any] = {
        "name": name,
        "stage": "forms",
        "outcome": "measured",
        "why": None,
        "seconds": 23.1,
        "step_ms": step_ms,
        "first_call_s": 12.1 if measured else None,
        "cold": True,
        "peak_bytes": 512 * 2**20 if measured else None,
        "kernel_ms": None,
        "numerics": {"verdict": "same"} if measured else None,
        "vs_eager": gain,
        "vs_eager_low": gain and gain * 0.95,
        "vs_eager_high": gain and gain * 1.05,
        "value": step_ms,
        "where": "",
        "resumed": False,
        "final": False,
        "source": f"model = torch.compile(model)  # {name}",
    }
    return {**plain, **more}


def failed(name: str, outcome: str, why: str | None) -> dict[str, Any]:
    return trial(name, outcome=outcome, why=why)


TRIALS = (
    trial("eager", EAGER_MS, first_call_s=0.02, seconds=4.0, final=True),
    trial("full", 1.93, final=True),
    trial(CHOSEN, 1.2, first_call_s=4.1, final=True, source=SOURCE),
    trial("full:reduce-overhead", 2.4, first_call_s=15.0, resumed=True),
    trial("regional", 2.0, first_call_s=3.3),
    trial(SWITCH, 1.9, stage="switches", first_call_s=2.2, cold=False),
    failed("core:encode", "wrong", "call 0 differs by 0.31"),
    failed("full:max-autotune", "timed out", "no answer within 120 s"),
    failed("nested", "out of memory", None),
    failed("core:decode", "failed", "InductorError: no kernel for this input."),
    failed("full+graph", "not applicable", "CUDA graphs need a GPU"),
)
SKIPPED = (
    {"name": "full:dynamic", "why": "no size varies over the calls"},
    {"name": "regional:dynamic", "why": "no size varies over the calls"},
    {"name": "full:max-autotune+graph", "why": "CUDA graphs need a GPU"},
)
PROBE = {
    "calls": 3,
    "bound": "launch",
    "bound_why": "the GPU is busy 31 percent of a step",
    "blocks": {"Block": 12},
    "varying": [],
}
TUNING: dict[str, Any] = {
    "objective": "step",
    "effort": "normal",
    "budget_s": 600.0,
    "spent_s": 412.3,
    "min_gain": 1.05,
    "stopped": "what is left cannot win",
    "executor": "this machine",
    "resumed": 1,
    "probe": PROBE,
    "trials": list(TRIALS),
    "skipped": list(SKIPPED),
    "chosen": CHOSEN,
    "why": "2.58x faster than eager (2.53 to 2.63)",
    "recipe": {"strategy": CHOSEN, "lines": SOURCE},
    "recipe_file": "torchproof.toml",
}


def row(strategy: str, ms: float, **more: Any) -> Any:
    return bench_runs.row(strategy, ms, eager_ms=EAGER_MS, **more)


def tune(run: dict[str, Any] | None = None, **changed: Any) -> Run:
    """A search that ended well; `changed` is of its tuning, `run` of the run."""
    plain: dict[str, Any] = {
        "id": "20260102-0304-model",
        "target": "model.py:make",
        "strategy": CHOSEN,
        "environment": bench_runs.ENVIRONMENT,
        "counts": {},
        "measurements": (
            row("eager", EAGER_MS),
            row("full", 1.95),
            row(CHOSEN, 1.21, first_call_s=4.1, source=SOURCE),
        ),
        "tuning": Tuning.from_json({**TUNING, **changed}),
        "verb": "tune",
        "command": "torchproof tune model.py:make",
        "started": "2026-01-02T03:04:05",
    }
    return Run(**{**plain, **(run or {})})
