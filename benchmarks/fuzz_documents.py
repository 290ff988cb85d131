"""Sound documents of each format, small and with all that there can be in them."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

ROUNDS = [[1.0 + (i * 7 + j) % 5 / 100 for j in range(4)] for i in range(8)]


def a_row(strategy: str, scale: float, **more: Any) -> dict[str, Any]:
    eager = strategy == "eager"
    return {
        "strategy": strategy,
        "variant": {},
        "median_ms": scale,
        "low_ms": 0.9 * scale,
        "high_ms": 1.1 * scale,
        "samples": 32,
        "outliers": 0,
        "p95_ms": 1.2 * scale,
        "luck": 0.02,
        "rounds_ms": [[scale * ms for ms in each] for each in ROUNDS],
        "repeats": [4, 4],
        "first_call_s": 0.1 if eager else 12.0,
        "start": {"label": "cold", "hits": 0, "misses": 2, "imports_s": 0.5},
        "warm_start": {"label": "warm", "first_call_s": 1.0, "hits": 2},
        "compile_s": None if eager else {"total": 10.0, "dynamo": 2.0},
        "peak_bytes": 1 << 20,
        "memory": {"host_rss": 1 << 20, "cuda_allocated": None},
        "numerics": {"verdict": "same", "max_rel_error": 1e-6, "reference": "float64"},
        "vs_eager": None if eager else 2.0,
        "vs_eager_low": 1.9,
        "vs_eager_high": 2.1,
        "break_even_steps": 9,
        "verdict": "2.00x faster",
        "break_even": "after 9 steps",
        "counts": None if eager else {"graph_breaks": 1, "blocks_of": {"Block": 2}},
        "guards": {
            "guards": 3,
            "lookup_us": 1.5,
            "share": 0.01,
            "not_checked": {"A": 1},
        },
        "kernels": {"per_step": 3.0, "busy_share": 0.5},
        "throughput": 10.0,
        "unit": "tokens/s",
        "notes": ["raise --seconds"],
        "error": None,
        "source": "model = torch.compile(model)\nmodel(x)",
    } | more


A_FINDING = {
    "code": "GB101",
    "kind": "graph_break",
    "severity": "high",
    "owner": "user",
    "message": "`x.item()` splits the graph",
    "cause": "a value",
    "fix": "a tensor",
    "file": "model.py",
    "line": 3,
    "function": "Net.forward",
    "origin": "both",
    "count": 2,
    "steps": 2,
    "cost_us": 12.5,
    "status": "open",
    "column": 5,
    "end_column": 13,
    "source": "    x.item()",
    "context": ["    x.item()"],
    "context_from": 3,
    "evidence": ["GB0124 https://x/gb/gb0124.html"],
    "suspects": None,
}
A_SITE = {
    "file": "model.py",
    "line": 9,
    "end_line": 9,
    "function": None,
    "subject": "model",
    "mode": '"default"',
    "calls": 3,
    "source": "torch.compile(m)",
}
A_TRIAL = {
    "name": "full",
    "stage": "forms",
    "outcome": "measured",
    "why": None,
    "seconds": 3.0,
    "step_ms": 1.0,
    "first_call_s": 9.0,
    "cold": True,
    "value": 1.0,
    "numerics": {"verdict": "same"},
    "vs_eager": 2.0,
    "vs_eager_low": 1.9,
    "vs_eager_high": 2.1,
    "peak_bytes": 9,
    "final": False,
    "source": "m(x)",
}


def a_run(verb: str, **more: Any) -> dict[str, Any]:
    run: dict[str, Any] = {
        "schema": 1,
        "id": f"20260101-0000-{verb}",
        "target": "missing.py:make",
        "strategy": "as-written",
        "verb": verb,
        "started": "2026-01-01T00:00:00",
        "command": f"torchproof {verb} missing.py:make",
        "ending": "finished",
        "environment": {
            "torch": "2.13.0",
            "python": "3.11.7",
            "device": "cpu",
            "cores": 2,
            "threads": 2,
            "machine": "x86_64",
            "variables": {"TORCH_LOGS": "x"},
        },
        "counts": {"calls": 3, "graph_breaks": 1, "recompiles": 0, "graphs": None},
        "findings": [],
        "measurements": [],
        "parts": {},
        "configuration": [],
        "baseline": None,
        "options": {},
        "tuning": None,
        "exit_code": None,
    }
    return run | more


AN_EARLIER_RUN = {
    "id": "20251231-0000-check",
    "target": "missing.py:make",
    "command": "x",
    "started": "2025-12-31T00:00:00",
    "counts": {"graph_breaks": 2},
    "environment": {"torch": "2.12"},
    "measurements": [a_row("full", 0.6)],
    "findings": {"high": 1, "low": 0},
    "identities": ["0123456789abcdef"],
}
A_SEARCH = {
    "objective": "steps:500",
    "effort": "normal",
    "budget_s": 60.0,
    "spent_s": 30.0,
    "min_gain": 1.05,
    "stopped": "budget",
    "executor": "1 GPU",
    "probe": {"bound": "launch", "blocks": {"B": 2}, "varying": [["x", [0]]]},
    "trials": [
        A_TRIAL | {"name": "eager"},
        A_TRIAL,
        A_TRIAL | {"outcome": "wrong"},
    ],
    "skipped": [{"name": "a", "why": "b"}],
    "chosen": "full",
    "why": "2x",
    "recipe": {"lines": "m = torch.compile(m)", "strategy": {"graph": True}},
    "recipe_file": "torchproof.toml",
}


A_RANK_RUN = {
    "world_size": 2,
    "launcher": "python -m torch.distributed.run",
    "ranks": [
        {
            "rank": number,
            "outcome": "finished",
            "exit_code": 0,
            "first_seen_s": 0.0,
            "last_seen_s": 9.0,
            "steps": 3,
            "events": [
                {
                    "kind": "compile",
                    "start_s": 1.0,
                    "seconds": 2.0,
                    "function": "Net.forward",
                    "file": "model.py",
                    "line": 3,
                    "compile_id": "0/0",
                    "sizes": {"x": "8x4"},
                },
                {"kind": "collective", "start_s": 3.0, "nth": 1, "group": "0"},
            ],
        }
        for number in (0, 1)
    ],
    "functions": [
        {
            "function": "Net.forward",
            "ranks": [{"rank": 0, "compiles": 1, "graphs": ["a", None]}],
            "differs": ["compiles"],
        }
    ],
    "waits": [
        {
            "collective": "all_reduce",
            "late": 1,
            "waiting": [0],
            "start_s": 3.0,
            "seconds": 1.5,
            "cause": "compile",
            "nth": 1,
            "group": "0",
        }
    ],
    "timeout": {"collective": "all_reduce", "ranks": [0], "missing": [1]},
}


def run_documents() -> list[dict[str, Any]]:
    """A check, a bench and a search, small and with all there can be."""
    rows = [a_row("eager", 1.0), a_row("full", 0.5)]
    swept = [
        a_row(s, 1.0, variant={"batch": b}) for s in ("eager", "full") for b in (1, 2)
    ]
    hazard = A_FINDING | {"kind": "hazard", "suspects": "graph_break", "line": 9}
    check = a_run(
        "check",
        findings=[A_FINDING, hazard, A_FINDING | {"status": "resolved", "file": None}],
        parts={
            "breaks": {"status": "found", "why": ""},
            "static": {"status": "passed"},
        },
        configuration=[A_SITE],
        measurements=rows,
        baseline=AN_EARLIER_RUN,
        ranks=A_RANK_RUN,
        options={
            "effort": "normal",
            "compile": {"mode": "default"},
            "arguments": ["-x"],
        },
    )
    return [
        check,
        a_run("bench", measurements=[*rows, *swept]),
        a_run("tune", measurements=rows, tuning=A_SEARCH),
        a_run("check", options={"effort": "static"}, parts={}),
        a_run("bench"),
    ]


FIXED = b"""import torch


def f(x):
    y = x.item()
    return x * y


def make():
    return f, [(torch.ones(3),)]
"""
EDITED = FIXED.replace(b"x.item()", b"x.sum()")


def saved_runs() -> dict[str, dict[str, Any]]:
    """Runs of verbs whose records are large: load tests, and fixes of `FIXED`."""
    folder = Path(__file__).parent / "fuzz_runs"
    runs = {path.stem: json.loads(path.read_bytes()) for path in folder.glob("*.json")}
    runs["fix"]["environment"]["torch"] = metadata.version("torch")
    return dict(sorted(runs.items()))


REQUESTS: tuple[tuple[float, Any], ...] = (
    (0.0, {"call": 0}),
    (0.25, {"call": 2}),
    (0.5, {"sizes": {"batch": 4, "sequence": 16}}),
    (1.5, {}),
)


TRACE = (
    ({"str": ["model.py", 0]}, ""),
    (
        {
            "dynamo_start": {"stack": [{"line": 3, "name": "f", "filename": 0}]},
            "frame_id": 0,
            "frame_compile_id": 0,
            "attempt": 0,
        },
        "",
    ),
    ({"dynamo_output_graph": {"sizes": {}}, "frame_id": 0, "frame_compile_id": 0}, "g"),
    (
        {
            "artifact": {"name": "dynamo_graph_break_reason", "encoding": "string"},
            "frame_id": 0,
            "frame_compile_id": 0,
        },
        "Graph Break Reason:\nUnsupported\n  Explanation: x\n  Hint: y\n"
        'User code traceback:\n  File "model.py", line 3, in f\n    x.item()\n',
    ),
    (
        {
            "artifact": {"name": "recompile_reasons"},
            "frame_id": 0,
            "frame_compile_id": 1,
        },
        "[\"0/0: tensor 'x' size mismatch at index 0. expected 2, actual 3\"]",
    ),
    (
        {
            "symbolic_shape_specialization": {
                "symbol": "s0",
                "sources": ["L['x'].size()[0]"],
                "value": "3",
                "reason": "r",
                "user_stack": [{"line": 3, "name": "f", "filename": 0}],
            },
            "frame_id": 0,
            "frame_compile_id": 1,
        },
        "",
    ),
    (
        {
            "compilation_metrics": {
                "co_name": "f",
                "co_filename": "model.py",
                "co_firstlineno": 2,
                "fail_type": "TorchRuntimeError",
                "fail_reason": "boom",
                "fail_user_frame_filename": "model.py",
                "fail_user_frame_lineno": 3,
            },
            "frame_id": 0,
            "frame_compile_id": 1,
        },
        "",
    ),
)


SOURCE = b"""import torch
class Net(torch.nn.Module):
    def forward(self, x):
        y = x.item()  # torchproof: ignore[GB101]
        if x.sum() > 0:
            print(f"{x!r}")
        return torch.compile(self.inner)(x) + y
"""
CODINGS: tuple[str, ...] = (
    "rot13",
    "utf-16",
    "utf-7",
    "base64",
    "zlib",
    "hex",
    "idna",
    "punycode",
)
CODINGS += ("undefined", "unicode_escape", "raw_unicode_escape", "cp037", "no-such")
CODINGS += ("latin-1", "utf-8-sig", "mbcs", "ascii", "utf-32", "big5", "bz2", "quopri")
EXPRESSIONS: tuple[bytes, ...] = (
    b"-" * 20_000 + b"1",
    b"(" * 150 + b")" * 150,
    b"x" + b".a" * 20_000,
)
EXPRESSIONS += (b"x" + b"[0]" * 5_000, b"1" + b"+1" * 20_000, b"not " * 5_000 + b"x")
EXPRESSIONS += (b"lambda: " * 900 + b"x", b"[" * 90 + b"x" + b"]" * 90, b"9" * 5_000)


LOG = b"""# Experiment log

Plans, observations and retrospectives, oldest entry first.
`torchproof log` appends entries and never changes existing text.
You can write between the entries.

## 2026-01-01 - Plan: try regional

- Entry: `20260101-1830-plan`
- Type: Plan
- Date: 2026-01-01 18:30:00
- Target: `missing.py:make`

**General description:** try regional

### Details

because the first call is slow

### Expected

- speed >= 1.2 (times as fast as eager, best strategy)
- graph_breaks = 0

### Artifacts

- next: runs, for example `torchproof check missing.py:make`
- then: `torchproof log retrospective`

## 2026-01-01 - Observation: bench of missing.py:make, not enough evidence

- Entry: `20260101-1830-observation`
- Type: Observation
- Date: 2026-01-01 18:30:00
- Run: `20260101-0000-bench`, started 2026-01-01T00:00:00

**General description:** Compiling may or may not pay off on cpu.

### Details

- decision: not enough evidence: eager was not measured

### Key figures

| Figure | Value |
| --- | --- |
| calls | 3 |
| graph breaks | 1 |
| recompiles | 0 |

### Artifacts

- run: `run.json`, shown by `torchproof show run.json`
- command: `torchproof bench missing.py:make`
- environment: torch 2.13.0, cpu, python 3.11.7, machine x86_64
- variables: `TORCH_LOGS=x`

## 2026-01-01 - Retrospective: try regional

- Entry: `20260101-1830-retrospective`
- Type: Retrospective
- Date: 2026-01-01 18:30:01
- Plan: `20260101-1830-plan`, of 2026-01-01 18:30:00

**General description:** The plan "try regional" has no measurements.

### Details

- planned: try regional
- only runs of `missing.py:make` count

### Key figures

| Expected | Measured | Verdict | Run |
| --- | --- | --- | --- |
| speed >= 1.2 | - | not measured | - |
| graph_breaks = 0 | - | not measured | - |

### Learned

What we learned: (write here)

## 2026-01-02 - Plan: fewer breaks

- Entry: `20260102-0000-plan`
- Type: Plan
- Date: 2026-01-02 00:00:00

**General description:** fewer breaks

```text
code
```
"""
