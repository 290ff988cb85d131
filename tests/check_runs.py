"""Checks made by hand, and checks made at random, for what renders them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import bench_runs
from hypothesis import strategies as st

from torchproof.checking import rules
from torchproof.records import Remedy, Replacement, Setting, shapes
from torchproof.records.run import (
    CATEGORIES,
    Baseline,
    CompileSite,
    Finding,
    Measurement,
    Part,
    Run,
)
from torchproof.records.severity import SEVERITIES

SAME = shapes.Numerics(verdict="same", max_rel_error=0.0)

ITEM = Finding(
    code="GB101",
    kind="graph_break",
    severity="high",
    message="`loss.item()` splits the graph of Net.forward, in every call",
    cause="`loss.item()` needs the tensor's value in Python while the graph is traced",
    fix="keep `loss` a tensor: torch.where(loss > limit, a, b)",
    file="model.py",
    line=42,
    function="Net.forward",
    owner="user",
    origin="both",
    count=12,
    steps=6,
    cost_us=180.5,
    evidence=("torch: Unsupported Tensor.item() call: it is not traced",),
    page="https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0124.html",
    column=16,
    end_column=27,
    source="            if loss.item() > limit:",
    context=(
        "        for block in self.blocks:",
        "            if loss.item() > limit:",
        "                break",
    ),
    context_from=41,
)
SIZE = replace(
    ITEM,
    code="RC201",
    kind="recompile",
    severity="medium",
    message="size 1 of `tokens` changed (128, 256): forward was recompiled 2 times",
    cause="the graph was compiled for one size of `tokens` in dimension 1",
    fix="torch._dynamo.maybe_mark_dynamic(tokens, 1) before the first call",
    line=18,
    origin="dynamic",
    cost_us=None,
    evidence=(),
    page=None,
    column=None,
    end_column=None,
    source="    def forward(self, tokens):",
    context=(),
    context_from=None,
)
READ = replace(
    SIZE,
    code="GB102",
    kind="hazard",
    suspects="graph_break",
    severity="low",
    message="`if mask.any()` needs a tensor's value; this run did not reach it",
    line=57,
    origin="static",
    count=None,
    steps=None,
)
NOWHERE = replace(
    SIZE,
    code="NC806",
    kind="no_op",
    severity="low",
    message="nothing calls torch.compile",
    file=None,
    line=None,
    function=None,
    owner=None,
    source=None,
)
DRAFT = Remedy(
    "edit",
    (
        Replacement("model.py", 3, (), ("from torchproof import raise_if\n",), 3),
        Replacement(
            *("model.py", 64),
            old=("        if (y < 0).any():\n", "            raise ValueError\n"),
            new=("        raise_if((y < 0).any(), ValueError)\n",),
            at=64,
        ),
    ),
    title="check the tensor in the graph, with raise_if, at model.py:64",
)
DRAFTED = replace(
    ITEM,
    code="GB102",
    message="`if (y < 0).any():` splits the graph of Net.forward, in every call",
    fix=DRAFT.text,
    line=64,
    column=None,
    end_column=None,
    source="        if (y < 0).any():",
    context=(),
    context_from=None,
    remedy=DRAFT,
)
ALLOW = Setting("dynamo.allow_rnn", True)
LINE = ("torch._dynamo.config.allow_rnn = True\n",)
SET = replace(
    DRAFTED,
    code="GB108",
    message="`self.rnn(x)` splits the graph of Net.forward, in every call",
    line=70,
    source="        x, _ = self.rnn(x)",
    remedy=Remedy("setting", (Replacement("train.py", 5, (), LINE, 5),), (ALLOW,)),
    fix=Remedy("setting", settings=(ALLOW,)).text,
)
WANTED = replace(ITEM, code="GB106", status="intentional", severity="low", line=60)
GONE = replace(ITEM, code="GB103", status="resolved", message="`x[mask]` was there")
SITE = CompileSite(
    file="train.py",
    line=12,
    end_line=14,
    function=None,
    subject="model",
    mode='"reduce-overhead"',
    order="after",
    observation="compiled after DDP: hooks of DDP split the graph",
    calls=6,
)
BEFORE = Baseline(
    id="20260101-0900-model",
    started="2026-01-01T09:00:00",
    command="torchproof check model.py:make",
    counts={"graph_breaks": 3, "recompiles": 2, "graphs": 4},
    environment={"torch": "2.12.0+cpu", "device": "cpu"},
    measurements=(
        Measurement("eager", median_ms=1.0, low_ms=0.9, high_ms=1.1, numerics=SAME),
        Measurement("full", median_ms=2.0, low_ms=1.9, high_ms=2.1, numerics=SAME),
    ),
    findings={"high": 2, "medium": 1, "low": 0},
    identities=(ITEM.identity,),
)


def check(*findings: Finding, **more: Any) -> Run:
    """A check of model.py:make by the command line, effort quick."""
    plain: dict[str, Any] = {
        "id": "20260102-0304-model",
        "target": "model.py:make",
        "strategy": "full",
        "environment": bench_runs.ENVIRONMENT,
        "counts": {"calls": 6, "graphs": 3, "graph_breaks": 1, "recompiles": 2},
        "findings": findings,
        "parts": {
            "static": Part("found"),
            "breaks": Part("found"),
            "baseline": Part("skipped", "not part of --effort quick", limit="effort"),
        },
        "command": "torchproof check model.py:make --effort quick --train -q",
        "started": "2026-01-02T03:04:05",
    }
    return rules.with_texts(Run(**{**plain, **more}))


FULL = check(
    *(ITEM, SIZE, READ, NOWHERE, WANTED, GONE),
    configuration=(SITE,),
    baseline=BEFORE,
    measurements=(bench_runs.row("eager", 1.0), bench_runs.row("full", 0.5)),
)

# -- at random -------------------------------------------------------------------------

MARKUP = "`*_[]()<>|\\~#$&!@-. \n\x00\u202e\ud800"
TEXT = st.text(st.characters() | st.sampled_from(MARKUP), max_size=30)
CODES = st.sampled_from(["GB101", "RC201", "CG311", "NM401", "SP541", "ZZ999", "HS901"])
LINES = st.integers(1, 10**6) | st.none()
CODE = st.lists(TEXT, max_size=3).map(tuple)
EDITS = st.lists(
    st.builds(Replacement, TEXT, st.integers(1, 10**6), CODE, CODE), max_size=2
).map(tuple)
COSTS = st.none() | st.floats(0, allow_nan=False)


@st.composite
def findings(draw: st.DrawFn) -> Finding:
    return Finding(
        code=draw(CODES),
        kind=draw(st.sampled_from(sorted(CATEGORIES))),
        severity=draw(st.sampled_from(SEVERITIES)),
        message=draw(TEXT),
        cause=draw(TEXT),
        fix=draw(TEXT),
        file=draw(st.none() | TEXT),
        line=draw(LINES),
        function=draw(st.none() | TEXT),
        owner=draw(st.sampled_from(["user", "library", None])),
        origin=draw(st.sampled_from(["static", "dynamic", "both"])),
        count=draw(st.none() | st.integers(0, 10**30)),
        steps=draw(st.none() | st.integers(0, 99)),
        cost_us=draw(COSTS),
        status=draw(st.sampled_from(["open", "open", "resolved", "intentional"])),
        evidence=tuple(draw(st.lists(TEXT, max_size=2))),
        column=draw(LINES),
        end_column=draw(LINES),
        source=draw(st.none() | TEXT),
        context=tuple(draw(st.lists(TEXT, max_size=3))),
        context_from=draw(LINES),
        suspects=draw(st.none() | st.sampled_from(sorted(CATEGORIES))),
        remedy=draw(st.none() | st.builds(Remedy, st.just("edit"), EDITS, title=TEXT)),
    )


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Any check: hostile names, unknown numbers, an earlier run or none."""
    return check(
        *draw(st.lists(findings(), max_size=6)),
        target=draw(
            st.sampled_from(["m.py:make", "s.py", "trace:d", "x", "a b"]) | TEXT
        ),
        command=draw(TEXT | st.just("torchproof check 'a b' --train -- --x 1")),
        counts=draw(st.dictionaries(TEXT, st.none() | st.integers(0), max_size=3)),
        configuration=draw(st.sampled_from([(), (SITE,)])),
        baseline=draw(st.sampled_from([None, BEFORE, Baseline()])),
        environment=draw(st.dictionaries(TEXT, TEXT, max_size=2)),
        error=draw(st.none() | TEXT),
    )
