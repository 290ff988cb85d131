"""Runs made by hand that the page has to show: rich, hostile, and long."""

from __future__ import annotations

from typing import Any

import bench_runs

from torchproof.records.run import (
    SEVERITIES,
    Baseline,
    CompileSite,
    Finding,
    Measurement,
    Part,
    Run,
)

# What a name or a line of somebody's code may hold. Were any of it taken for markup,
# the page would set `window.hacked`.
MARKUP = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    '"><svg onload=window.hacked=1>',
    "</script></style></template><script>window.hacked=1</script>",
    "javascript:window.hacked=1",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- <![CDATA[ ]]> &lt;b&gt; --!>",
)
HIDDEN = "safe\u202etxt.exe\u2066\u200b\u2028\x00\x1b[31m\ufeff\ud800"
LETTERS = "\u05e9\u05dc\u05d5\u05dd \u4e2d\u6587 \U0001f525 e\u0301" + "\u0300" * 40
CONTEXT = (
    "    def forward(self, x):",
    "        scores = self.score(x)",
    "        if scores.max().item() > self.limit:",
    "            scores = scores.clamp(max=self.limit)",
    "        return scores",
)


def finding(**more: Any) -> Finding:
    plain: dict[str, Any] = {
        "code": "GB101",
        "kind": "graph_break",
        "severity": "high",
        "message": "`scores.max().item()` splits the graph of Model.forward",
        "cause": "the value must reach Python before tracing can go on",
        "fix": "keep it a tensor: `torch.where(scores > limit, a, b)`",
        "file": "model.py",
        "line": 12,
        "function": "Model.forward",
        "owner": "user",
        "count": 6,
        "steps": 6,
        "column": 12,
        "end_column": 31,
        "source": CONTEXT[2],
        "context": CONTEXT,
        "context_from": 10,
        "evidence": ("torch: https://docs.pytorch.org/docs/stable/index.html says so",),
    }
    return Finding(**{**plain, **more})


def row(strategy: str, ms: float, **more: Any) -> Measurement:
    """Compiled rows know where compiling spent its time."""
    known: dict[str, Any] = {}
    if strategy != "eager":
        spent = {"dynamo": 1.2, "aot_autograd": 2.5, "inductor": 4.1, "triton": 0.4}
        known["compile_s"] = {**spent, "graph_recording": 0.0, "total": 8.2}
        known["guards"] = {"lookup_us": 31.0, "share": 0.06}
        known["kernels"] = {"per_step": 24.0, "kernel_ms": 0.2, "busy_share": 0.4}
    return bench_runs.row(strategy, ms, **{**known, **more})


def check(**more: Any) -> Run:
    """A check with everything the page can show."""
    found = (
        finding(cost_us=180.5, origin="both"),
        finding(
            code="RC201",
            kind="recompile",
            severity="medium",
            message="size 1 of `x` changed (16, 32): Model.forward was recompiled",
            cause="a size that changes",
            file="layers/attention.py",
            line=88,
            cost_us=42.0,
        ),
        finding(
            code="GB106",
            kind="hazard",
            severity="low",
            message="`print` would split the graph; this run did not reach it",
            cause="print is outside the graph",
            suspects="graph_break",
            origin="static",
            line=14,
        ),
        finding(code="GB103", cause="a mask", message="`x[mask]`", status="resolved"),
        finding(code="GB107", cause="disabled here", status="intentional"),
    )
    plain: dict[str, Any] = {
        "id": "20260102-0304-model",
        "target": "model.py:make",
        "strategy": "full",
        "environment": bench_runs.ENVIRONMENT,
        "counts": {"calls": 6, "compiled_calls": 4, "graphs": 3, "graph_breaks": 2}
        | {"skipped_frames": 0, "recompiles": 1, "cudagraph_skips": None},
        "findings": found,
        "measurements": measurements(),
        "parts": {
            "static": Part("found", "4 files read"),
            "breaks": Part("found"),
            "guards": Part("skipped", "not part of --effort normal"),
            "batch": Part("failed", "the factory takes no batch"),
        },
        "configuration": (
            CompileSite("train.py", 30, 32, "main", "model", mode='"max-autotune"'),
        ),
        "baseline": Baseline(
            id="20260101-0000-model",
            started="2026-01-01T00:00:00",
            counts={"calls": 6, "compiled_calls": 4, "graph_breaks": 5},
            environment={**bench_runs.ENVIRONMENT, "threads": 4},
            measurements=(Measurement("eager", median_ms=1.1),),
            findings={"high": 4, "medium": 1, "low": 0},
        ),
        "command": "torchproof check model.py:make",
        "started": "2026-01-02T03:04:05",
    }
    return Run(**{**plain, **more})


def measurements() -> tuple[Measurement, ...]:
    rows = [row("eager", 1.0), row("full", 0.6, seed=1)]
    for size, again in ((2, 0), (4, 1), (3, 0)):
        counts = {"recompiles": again}
        rows.append(row("eager", size * 0.5, variant={"batch": size}))
        more = {"variant": {"batch": size}, "eager_ms": size * 0.5, "counts": counts}
        rows.append(row("full", size * 0.3, **more))
    return tuple(rows)


def hostile() -> Run:
    """Every text is an attack, every number larger than any clock or counter gives."""
    nasty = " ".join((*MARKUP, HIDDEN, LETTERS, "W" * 400, f"--{'w' * 400}"))
    found = [
        finding(
            code=code,
            message=f"{text} {nasty}",
            cause=nasty,
            fix=f"`{text}` https://example.org/{text}",
            file=f"{text}/{nasty}.py",
            function=nasty,
            line=10**18,
            count=10**30,
            cost_us=cost,
            source=nasty,
            context=(nasty, text),
            context_from=10**18,
            evidence=(text, nasty),
        )
        for text, code, cost in zip(
            MARKUP,
            ("GB101", "<b>X</b>", *["ZZ999"] * 5),
            (1e300, float("inf"), float("nan"), 10**200, -1.0, 1e12, None),
            strict=True,
        )
    ]
    rows = (
        row("eager", 1.0, notes=(nasty,)),
        row(nasty, 0.5, source=nasty, compile_s={nasty: 1e14, "dynamo": float("nan")}),
        row(MARKUP[0], 1e12, peak_bytes=10**30, counts={nasty: 10**40}),
        row("lost", 2.0, low_ms=float("-inf"), high_ms=float("inf")),
    )
    return check(
        target=nasty,
        strategy=nasty,
        findings=tuple(found) * 20,  # some of them wait as text to be asked for
        measurements=rows,
        environment={nasty: nasty, "torch": MARKUP[0], "variables": {nasty: nasty}},
        counts={"calls": 10**30, "compiled_calls": 1, nasty: 5},
        parts={nasty: Part("failed", nasty)},
        configuration=(CompileSite(nasty, 1, 2, nasty, nasty, options=nasty),),
        command=nasty,
        error=nasty,
    )


def many(number: int = 5000) -> Run:
    kinds = ("graph_break", "recompile", "hazard", "host_sync")
    found = tuple(
        finding(
            message=f"`call_{index}()` splits the graph of Layer{index}.forward",
            cause=f"cause of Layer{index}",
            function=f"Layer{index}.forward",
            severity=SEVERITIES[index % 3],
            kind=kinds[index % 4],
            file=f"package/module_{index % 50}.py",
            line=12,
        )
        for index in range(number)
    )
    return check(findings=found)
