"""The runs that tests/snapshots shows in every format: one of each verb and outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import bench_runs
import check_runs
import load_runs
import rank_runs
import tune_runs
from bench_runs import WRONG, bench, row
from check_runs import DRAFT, DRAFTED, ITEM, READ, SET, SIZE, check

from torchproof.checking import rules
from torchproof.measure import Comparison
from torchproof.measure.comparison import compare
from torchproof.records import Fix, Fixing, Part, Receipt, Run
from torchproof.records.run import CompileSite, Measurement
from torchproof.records.severity import SEVERITIES

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
LETTERS = "\u05e9\u05dc\u05d5\u05dd \u4e2d\u6587 \U0001f525 e\u0301" + "\u0300" * 9
MARKDOWN = "| `a` *b* [c](d) # e\n::error::forged 100%"

# -- checks ----------------------------------------------------------------------------

EFFECT = replace(
    SIZE, function="Head.forward", cause_of=(ITEM.identity,), certainty="likely"
)
TIMM = "/env/lib/python3.11/site-packages/timm/a.py"
LIBRARY = replace(
    SIZE,
    file=TIMM,
    owner="library",
    key="a library",
    evidence=('torch: computed here: # File "a.py", line 9, code: y = HIDDEN_LINE',),
)
PATCH = replace(
    DRAFT,
    kind="patch",
    replacements=(replace(DRAFT.replacements[1], file=TIMM),),
    title=f"{DRAFT.title}: `torchproof fix TARGET --patch DIR` writes it",
)
PATCHED = replace(
    LIBRARY, line=64, key="a library's edit", remedy=PATCH, fix=PATCH.text
)
CHECK = replace(
    check_runs.FULL,
    findings=(*check_runs.FULL.findings, DRAFTED, SET, EFFECT, LIBRARY, PATCHED),
    counts={
        **check_runs.FULL.counts,
        "cudagraph_skips": 1,
        "cudagraph_recordings": 2,
        "cudagraph_replays": 40,
        "cudagraph_pool_bytes": 3 * 2**20,
        "cudagraph_kernel_share": 0.875,
    },
    parts={
        **check_runs.FULL.parts,
        "lifetimes": Part("passed", "as they would be on a GPU"),
        "batch": Part("failed", "the factory takes no batch"),
    },
    configuration=(replace(check_runs.SITE, source="model = compile(SECRET_LINE)"),),
)
CLEAN = check(
    counts={"calls": 6, "compiled_calls": 6, "graphs": 1, "graph_breaks": 0},
    parts={"breaks": Part("passed", "6 left out by --select or --ignore")},
)
CUT_SHORT = check(
    ITEM,
    target="train.py",
    ending="timeout",
    counts=dict.fromkeys(("calls", "graphs", "graph_breaks", "recompiles")),
    environment={"torch": None, "device": None},
    parts={"breaks": Part("failed", "ended by timeout")},
    error="the script ended with code 3",
)
STATIC = check(
    replace(READ, severity="high"),
    target="src",
    strategy="-",
    counts={},
    environment={},
    parts={
        "static": Part("found", "7 files read, src/a.py:3 is no Python"),
        "breaks": Part("skipped", "not part of --effort static", limit="effort"),
    },
    options={"effort": "static"},
    command="torchproof check src --effort static",
)


def many(number: int) -> Run:
    """A check with so many findings that a page shows some of them."""
    findings = [
        replace(
            ITEM,
            message=f"`call_{index}()` splits the graph of Layer{index}.forward",
            function=f"Layer{index}.forward",
            severity=SEVERITIES[index % 3],
        )
        for index in range(number)
    ]
    return check(*findings)


def hostile() -> Run:
    """Every text is an attack, every number larger than any clock or counter gives."""
    text = " ".join((*MARKUP[2:6], HIDDEN, LETTERS, MARKDOWN, "W" * 90))
    found = [
        replace(
            ITEM,
            code=code,
            message=f"{name} {text}",
            cause=text,
            fix=f"`{name}` https://example.org/{name}",
            file=f"{name}/{text}.py",
            function=text,
            line=10**18,
            count=10**30,
            cost_us=cost,
            source=text,
            context=(text, name),
            context_from=10**18,
            evidence=(name, text),
        )
        for name, code, cost in zip(
            (MARKUP[0], MARKUP[3]), ("GB101", "<b>X</b>"), (1e300, -1.0), strict=True
        )
    ]
    rows = (
        row("eager", 1.0, notes=(text,)),
        row(text, 0.5, source=text, compile_s={text: 1e14, "dynamo": float("nan")}),
        row(MARKUP[0], 1e12, peak_bytes=10**30, counts={text: 10**40}),
        row("lost", 2.0, low_ms=float("-inf"), high_ms=float("inf")),
    )
    return check(
        *found,
        target=text,
        strategy=text,
        measurements=rows,
        environment={text: text, "torch": MARKUP[0], "variables": {text: text}},
        counts={"calls": 10**30, "compiled_calls": 1, text: 5},
        parts={text: Part("failed", text)},
        configuration=(CompileSite(text, 1, 2, text, text, options=text),),
        command=text,
        error=text,
    )


# -- measurements ----------------------------------------------------------------------

MEASURED = row(
    "full",
    0.5,
    seed=1,
    warm_start={"label": "warm", "first_call_s": 1.2, "hits": 3, "misses": 0}
    | {"imports_s": 2.0},
    compile_s={"dynamo": 1.25, "aot_autograd": 0.8, "inductor": 6.1, "total": 11.5},
    counts={"graphs": 3, "graph_breaks": 0, "recompiles": 0, "artifacts": None},
    guards={"lookup_us": 12.34, "share": 0.022},
    kernels={"per_step": 127, "busy_share": 0.83},
    numerics={"verdict": "rounding", "max_rel_error": 1.2e-6}
    | {"eager_error": 1.1e-6, "reference": "float64"},
    throughput=12345.6,
    unit="tokens/s",
    source="model = torch.compile(model)\n",
)
UNSURE = row(
    "full:reduce-overhead",
    1.02,
    noise=0.1,
    first_call_s=None,
    start={"label": "cold", "refused": "called cold, but 2 of 3 graphs were cached"},
    break_even=None,
    break_even_steps=None,
    notes=("half of the samples spread over 12 percent: close other programs",),
)
ROWS = (
    row("eager", 1.0),
    MEASURED,
    UNSURE,
    row("core:encode", 0.1, **WRONG),
    Measurement("regional", verdict="skipped", notes=("no repeated blocks",)),
)


def varied(key: str, *rows: tuple[Any, str, float], **more: Any) -> list[Measurement]:
    return [
        row(strategy, ms, variant={key: value}, seed=number, **more)
        for number, (value, strategy, ms) in enumerate(rows)
    ]


def variants() -> Run:
    """A bench with every kind of variant: sizes, settings, guards, backends, dtypes."""
    less = replace(
        *varied("guards", ("skip_guard_eval_unsafe", "full", 0.5)),
        guards={"lookup_us": 8.0, "not_checked": {"DICT_VERSION": 3}},
    )
    again = {"counts": {"recompiles": 1}, "eager_ms": 0.8}
    rows = [
        row("eager", 1.0),
        row("full", 0.5, guards={"lookup_us": 12.0}),
        less,
        *varied("batch", (4, "eager", 1.0), (4, "full", 0.5), (2, "eager", 0.8)),
        *varied("batch", (2, "full", 0.4), **again),
        *varied("config", ("control", "full", 0.5), ("max_autotune=True", "full", 0.4)),
        *varied("backend", ("eager", "full", 1.0), ("aot_eager", "full", 1.1)),
        Measurement("full", {"backend": "inductor"}, error="boom: it broke"),
        *varied("dtype", ("float32", "eager", 1.0), ("float32", "full", 0.8)),
        *varied("dtype", ("bfloat16", "eager", 0.5), ("bfloat16", "full", 0.25)),
    ]
    return bench(rows)


UNVERIFIED = bench(
    [Measurement("eager", median_ms=1.0), Measurement("full", median_ms=0.5)],
    ending="interrupted",
)


def comparison() -> Comparison:
    before = bench([row("eager", 1.0), row("full", 0.5)], id="before")
    counts = {"graph_breaks": 1, "recompiles": 0}
    slower = row("full", 0.6, peak_bytes=2**30, counts=counts)
    environment = {**bench_runs.ENVIRONMENT, "torch": "2.11.0"}
    after = bench(
        [row("eager", 1.0, seed=1), slower], id="after", environment=environment
    )
    return compare(before, after)


# -- fixes -----------------------------------------------------------------------------

RECEIPT = Receipt(
    breaks=(2, 1),
    recompiles=(3, 0),
    graphs=(5, 2),
    outputs="same",
    max_rel_error=0.0,
    compared=12,
    unseen_inputs=4,
    exceptions=1,
    backend="aot_eager",
)
DIFF = """\
--- a/model.py
+++ b/model.py
@@ -42 +42 @@
-            if loss.item() > limit:
+            if bool(loss > limit):
"""


def fixed() -> Run:
    accepted = Fix(
        "keep the value in a tensor",
        "safe",
        "verified",
        ("GB101",),
        findings=(ITEM.identity,),
        file="model.py",
        line=42,
        function="Net.forward",
        owner="user",
        diff=DIFF,
        receipt=RECEIPT,
    )
    rejected = Fix(
        "replace the condition", "unsafe", "rejected", ("GB102",), why="outputs differ"
    )
    run = Run(
        "20260102-0304-model",
        "model.py:make",
        "full",
        bench_runs.ENVIRONMENT,
        {"calls": 2, "graphs": 5, "graph_breaks": 2, "recompiles": 3},
        findings=(SIZE,),
        fixes=(accepted, rejected),
        fixing=Fixing(
            rounds=2,
            proofs=3,
            seconds=4.2,
            counts={"calls": 2, "graphs": 2, "graph_breaks": 1, "recompiles": 0},
            remaining=(SIZE,),
            reasons={SIZE.identity: "no rewrite of this size is known"},
        ),
        verb="fix",
        command="torchproof fix model.py:make",
        started="2026-01-02T03:04:05",
    )
    return rules.with_texts(run)


def load_test() -> Run:
    """Strategies that stall, search for a rate, generate text, and end early."""
    searched = replace(load_runs.searched(), strategy="full:dynamic")
    generating = replace(load_runs.generating(), strategy="regional")
    stalled, ended = load_runs.recompiling(), load_runs.interrupted()
    every = (stalled, searched, generating, ended)
    return load_runs.run(every, findings=(load_runs.finding(),))


def interrupted_search() -> Run:
    """A search for the least time of 500 steps on two GPUs, which Ctrl-C ended."""
    trials = [{**each} for each in tune_runs.TRIALS]
    for each in trials:
        if each["step_ms"]:
            each["value"] = each["first_call_s"] + each["step_ms"] * 0.499
            each["where"] = "GPU 1"
    probe = {"bound": None, "bound_why": "the profiler saw no kernels", "blocks": {}}
    probe |= {"host_syncs": 3, "ops_per_call": 40.0, "varying": [["tokens", [1]]]}
    return tune_runs.tune(
        {"ending": "interrupted", "measurements": ()},
        objective="steps:500",
        trials=trials,
        probe=probe,
        stopped="interrupted",
        **dict.fromkeys(("chosen", "why", "recipe", "recipe_file")),
    )


RUNS: dict[str, Run] = {
    "check": CHECK,
    "check-clean": CLEAN,
    "check-cut-short": CUT_SHORT,
    "check-static": STATIC,
    "check-ranks": rank_runs.checked(rank_runs.short_last_batch()),
    "check-hostile": hostile(),
    "bench": bench(ROWS),
    "bench-variants": variants(),
    "bench-unverified": UNVERIFIED,
    "tune": tune_runs.tune(),
    "tune-eager": tune_runs.tune(chosen="eager", why="nothing beats it", recipe=None),
    "tune-interrupted": interrupted_search(),
    "fix": fixed(),
    "loadtest": load_test(),
}
