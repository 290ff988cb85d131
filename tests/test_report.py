"""What a reader sees: hand-made runs as text, at width 80 and without colour."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from textwrap import dedent
from typing import Any

import check_runs
import pytest

from torchproof.records.run import Finding, Part, Run
from torchproof.report import formats, render

COUNTS = {
    "calls": 12,
    "compiled_calls": 8,
    "graphs": 3,
    "graph_breaks": 1,
    "skipped_frames": 0,
    "recompiles": 2,
    "cudagraph_skips": None,
}
ITEM = replace(
    check_runs.ITEM,
    origin="dynamic",
    steps=12,
    cost_us=None,
    evidence=("PyTorch's GB0124", "https://example.org/gb0124.html"),
    context=(),
    context_from=None,
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
    evidence=(),
    column=None,
    end_column=None,
    source="    def forward(self, tokens):",
)
NOWHERE = replace(
    SIZE,
    code="NC806",
    kind="no_op",
    severity="low",
    message="nothing calls torch.compile",
    cause="train.py never calls torch.compile, so all of it ran eagerly",
    fix="model = torch.compile(model) before the first step",
    file=None,
    line=None,
    function=None,
    owner=None,
    source=None,
)
WANTED = replace(
    ITEM,
    code="GB106",
    status="intentional",
    severity="low",
    message="`log(x)` is marked @torch.compiler.disable and splits the graph here",
    line=57,
)
RUN = Run(
    id="20260102-0304-model",
    target="model.py:make",
    strategy="full",
    environment={"torch": "2.13.0+cpu", "device": "cpu"},
    counts=COUNTS,
    findings=(ITEM, SIZE, NOWHERE),
    parts={
        "static": Part("skipped", "not in this version"),
        "breaks": Part("found"),
        "guards": Part("skipped", "not part of --effort normal"),
    },
)
CLEAN = replace(
    RUN,
    counts={**COUNTS, "compiled_calls": 12, "graph_breaks": 0, "recompiles": 0},
    findings=(),
    parts={"breaks": Part("passed")},
)


def text(run: Run, **settings: Any) -> str:
    return render(run, "text", **settings)


def snapshot(expected: str) -> str:
    return dedent(expected).lstrip("\n")


def test_findings_have_place_code_caret_why_and_fix() -> None:
    assert text(RUN) == snapshot(
        """
        12 calls of model.py:make on cpu, torch 2.13.0+cpu, strategy full
        compiled 8 of 12 calls, graphs 3, breaks 1, skipped frames 0, recompiles 2

        model.py:42:16  GB101 high
           `loss.item()` splits the graph of Net.forward, in every call
            42 |     if loss.item() > limit:
               |        ^^^^^^^^^^^
           why: `loss.item()` needs the tensor's value in Python while the graph is
                traced
           fix: keep `loss` a tensor: torch.where(loss > limit, a, b)

        model.py:18  RC201 medium
           size 1 of `tokens` changed (128, 256): forward was recompiled 2 times
            18 |     def forward(self, tokens):
               |                       ^^^^^^
           why: the graph was compiled for one size of `tokens` in dimension 1
           fix: torch._dynamo.maybe_mark_dynamic(tokens, 1) before the first call

        -  NC806 low
           nothing calls torch.compile
           why: train.py never calls torch.compile, so all of it ran eagerly
           fix: model = torch.compile(model) before the first step

        3 findings (1 high, 1 medium, 1 low).
        Not checked, not in this version: static.
        Explain one:  torchproof rule GB101
        All evidence: torchproof show 20260102-0304-model -v
        """
    )


def test_intended_breaks_are_a_line_each() -> None:
    shown = text(replace(CLEAN, findings=(WANTED,)))
    assert shown == snapshot(
        """
        12 calls of model.py:make on cpu, torch 2.13.0+cpu, strategy full
        compiled 12 of 12 calls, graphs 3, breaks 0, skipped frames 0, recompiles 0

        Intended by the code, not counted:
           model.py:57:16  GB106  `log(x)` is marked @torch.compiler.disable and splits
              the graph here

        Nothing else found: no graph break, skipped frame, recompile or error.
        All evidence: torchproof show 20260102-0304-model -v
        """
    )


def test_a_clean_run_says_so() -> None:
    assert text(replace(CLEAN, strategy="as-written")) == snapshot(
        """
        12 calls of model.py:make on cpu, torch 2.13.0+cpu, as written
        compiled 12 of 12 calls, graphs 3, breaks 0, skipped frames 0, recompiles 0

        Nothing found: no graph break, skipped frame, recompile or error.
        Saved as run 20260102-0304-model.
        """
    )


def test_how_a_part_passed_is_said() -> None:
    parts = {**CLEAN.parts, "lifetimes": Part("passed", "as they would be on a GPU")}
    assert "Part lifetimes passed, as they would be on a GPU." in text(
        replace(CLEAN, parts=parts)
    )
    assert "Part lifetimes" not in text(
        replace(CLEAN, parts={**CLEAN.parts, "lifetimes": Part("passed")})
    )


def test_without_breaks_the_parts_that_ran_are_told_of() -> None:
    left_out = {"breaks": Part("skipped", "left out with --skip")}
    passed = {**left_out, "lifetimes": Part("passed")}
    said = text(replace(CLEAN, parts=passed))
    assert "Nothing found by the parts that ran." in said
    assert "Not checked, left out with --skip: breaks." in said


def test_a_run_that_was_ended_does_not_claim_to_be_clean() -> None:
    ended = replace(
        CLEAN,
        target="train.py",
        ending="timeout",
        counts={**COUNTS, "calls": 1, "compiled_calls": 1},
        parts={"breaks": Part("failed", "ended by timeout")},
    )
    assert text(ended) == snapshot(
        """
        1 call of train.py on cpu, torch 2.13.0+cpu, strategy full
        compiled 1 of 1 calls, graphs 3, breaks 1, skipped frames 0, recompiles 2
        Not complete: the run was ended early (timeout). This is what was seen.

        Nothing found until then.
        Saved as run 20260102-0304-model.
        """
    )
    failed = replace(ended, ending="finished", error="the script ended with code 3")
    assert "Not complete: the script ended with code 3." in text(failed)


def test_unknown_numbers_are_dashes() -> None:
    unknown = replace(
        CLEAN,
        target="trace:recorded",
        strategy="as-written",
        environment={"torch": None, "device": None},
        counts={**dict.fromkeys(COUNTS), "graphs": 3},
        parts={"breaks": Part("skipped", "left out with --skip")},
    )
    assert text(unknown) == snapshot(
        """
        - calls of trace:recorded, as written
        compiled - of - calls, graphs 3, breaks -, skipped frames -, recompiles -

        Not checked, left out with --skip: breaks.
        Saved as run 20260102-0304-model.
        """
    )


@pytest.mark.parametrize("findings", [(), (ITEM,)])
def test_what_select_leaves_out_is_counted(findings: tuple[Finding, ...]) -> None:
    status = "found" if findings else "passed"
    part = Part(status, "6 left out by --select or --ignore")
    shown = text(replace(CLEAN, findings=findings, parts={"breaks": part}))
    said = "1 finding (1 high)" if findings else "Nothing found"
    assert f"{said}, 6 left out by --select or --ignore." in shown.splitlines()


def test_verbose_adds_evidence_and_intended_findings() -> None:
    shown = text(replace(RUN, findings=(ITEM, WANTED)), verbose=True)
    assert "     - PyTorch's GB0124" in shown.splitlines()
    assert "model.py:57:16  GB106 low (intentional)" in shown.splitlines()
    assert "Intended by the code" not in shown


def test_colour_marks_severity_and_nothing_else() -> None:
    painted = text(RUN, colour=True)
    marks = re.findall(r"\x1b\[\d+m(.*?)\x1b\[0m", painted)
    assert marks == ["high", "medium", "low"]
    assert re.sub(r"\x1b\[\d+m", "", painted) == text(RUN)


@pytest.mark.parametrize("width", [60, 80, 110])
def test_prose_keeps_to_the_width(width: int) -> None:
    code = re.compile(r"\s*\d* \| |model\.py:|torchproof|Explain|All evidence|- {2}NC")
    lines = [line for line in text(RUN, width=width).splitlines() if line]
    assert max(len(line) for line in lines if not code.match(line)) <= width


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (formats.__file__.replace("report/formats", "x"), "torchproof/x.py:42:16"),
        ("/env/lib/python3.11/site-packages/timm/a.py", "timm/a.py:42:16"),
        ("/home/me/model.py", "/home/me/model.py:42:16"),
    ],
)
def test_places_in_packages_start_at_the_package(file: str, shown: str) -> None:
    lines = text(replace(RUN, findings=(replace(ITEM, file=file),))).splitlines()
    assert f"{shown}  GB101 high" in lines


def test_without_columns_or_quote_the_whole_line_is_marked() -> None:
    lines = text(replace(RUN, findings=(replace(SIZE, message="odd"),))).splitlines()
    code = next(number for number, line in enumerate(lines) if " | " in line)
    assert lines[code + 1] == " " * 6 + " | " + " " * 4 + "^" * 26


def test_json_is_the_whole_run() -> None:
    shown = json.loads(render(RUN, "json"))
    assert Run.from_json(shown) == RUN
    assert shown["findings"][0]["category"] == "Graph breaks"


GRAPHS: dict[str, Any] = {"cudagraph_skips": 1, "cudagraph_recordings": 2}
GRAPHS |= {"cudagraph_replays": 40, "cudagraph_pool_bytes": 3 * 2**20}
GRAPHS |= {"cudagraph_kernel_share": 0.875}


@pytest.mark.parametrize("style", ["text", "md"])
def test_what_became_of_cuda_graphs_is_one_sentence(style: str) -> None:
    def shown(counts: dict[str, Any]) -> str:
        run = replace(RUN, counts={**COUNTS, **counts})
        return " ".join(render(run, style).split())

    told = "2 recorded, 40 replays, 1 skip, 3.00 MiB of memory; 88% of a call's kernels"
    assert told in shown(GRAPHS)
    assert "CUDA graphs:" not in shown(dict.fromkeys(GRAPHS))
    assert "CUDA graphs:" not in shown(dict.fromkeys(GRAPHS, 0))
