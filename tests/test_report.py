"""What a reader sees: hand-made runs as text, at width 80 and without colour."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import check_runs
import pytest
from facts import missing, numbers

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


def blocks(shown: str) -> list[list[str]]:
    """The lines of a page, a list for each block; one at least has a newline."""
    assert shown.endswith("\n")
    return [block.split("\n") for block in shown.removesuffix("\n").split("\n\n")]


def words(lines: list[str]) -> str:
    """Lines as they were before they were wrapped."""
    return " ".join(" ".join(lines).split())


def test_findings_have_place_code_caret_why_and_fix() -> None:
    head, item, size, nowhere, end = blocks(text(RUN))
    assert missing(head[0], "12 calls", RUN.target, "cpu", "2.13.0+cpu", "full") == []
    assert numbers(head[1]) == [8, 12, 3, 1, 0, 2]
    assert item[0] == "model.py:42:16  GB101 high"
    assert item[1:4] == [
        f"   {ITEM.message}",
        "    42 |     if loss.item() > limit:",
        "       |        ^^^^^^^^^^^",
    ]
    assert words(item[4:]) == f"why: {ITEM.cause} fix: {ITEM.fix}"
    assert size == [
        "model.py:18  RC201 medium",
        f"   {SIZE.message}",
        "    18 |     def forward(self, tokens):",
        "       |                       ^^^^^^",
        f"   why: {SIZE.cause}",
        f"   fix: {SIZE.fix}",
    ]
    assert nowhere[0] == "-  NC806 low"
    told = f"{NOWHERE.message} why: {NOWHERE.cause} fix: {NOWHERE.fix}"
    assert words(nowhere[1:]) == told
    count, left_out, explain, evidence, fixable = end
    assert fixable.endswith(
        f"of 3 findings may be fixable: torchproof fix {RUN.target}"
    )
    assert numbers(count) == [3, 1, 1, 1]
    assert missing(left_out, RUN.parts["static"].why, "static") == []
    assert "guards" not in left_out, "a part of a higher effort"
    assert explain.endswith(" torchproof rule GB101")
    assert evidence.endswith(f" torchproof show {RUN.id} -v")


def test_intended_breaks_are_a_line_each() -> None:
    _, wanted, end = blocks(text(replace(CLEAN, findings=(WANTED,))))
    assert words(wanted[1:]) == f"model.py:57:16 GB106 {WANTED.message}"
    assert numbers(end[0]) == [], "it is not counted"
    assert end[-1].endswith(f" torchproof show {RUN.id} -v")


def test_a_clean_run_says_so() -> None:
    head, end = blocks(text(replace(CLEAN, strategy="as-written")))
    assert head[0].endswith(", as written")
    assert numbers(head[1]) == [12, 12, 3, 0, 0, 0]
    looked_for = ("graph break", "skipped frame", "recompile", "error")
    assert missing(end[0], *looked_for) == [] and numbers(end[0]) == []
    assert RUN.id in end[1] and "show" not in end[1]


def test_how_a_part_passed_is_said() -> None:
    how = Part("passed", "as they would be on a GPU")
    shown = text(replace(CLEAN, parts={**CLEAN.parts, "lifetimes": how}))
    [said] = [line for line in shown.split("\n") if how.why in line]
    assert missing(said, "lifetimes", "passed") == []
    assert "lifetimes" not in text(
        replace(CLEAN, parts={**CLEAN.parts, "lifetimes": Part("passed")})
    )


def test_without_breaks_the_parts_that_ran_are_told_of() -> None:
    left_out = Part("skipped", "left out with --skip")
    passed = {"breaks": left_out, "lifetimes": Part("passed")}
    _, (clean, said, _) = blocks(text(replace(CLEAN, parts=passed)))
    assert "graph break" not in clean, "it was not looked for"
    assert missing(said, left_out.why, "breaks") == []


def test_a_run_that_was_ended_does_not_claim_to_be_clean() -> None:
    ended = replace(
        CLEAN,
        target="train.py",
        ending="timeout",
        counts={**COUNTS, "calls": 1, "compiled_calls": 1},
        parts={"breaks": Part("failed", "ended by timeout")},
    )
    head, end = blocks(text(ended))
    assert head[0].startswith("1 call ")
    assert numbers(head[1]) == [1, 1, 3, 1, 0, 2]
    assert "(timeout)" in head[2]
    assert "graph break" not in end[0], "it does not claim that there is none"
    assert RUN.id in end[1]
    failed = replace(ended, ending="finished", error="the script ended with code 3")
    assert failed.error in blocks(text(failed))[0][2]


def test_unknown_numbers_are_dashes() -> None:
    unknown = replace(
        CLEAN,
        target="trace:recorded",
        strategy="as-written",
        environment={"torch": None, "device": None},
        counts={**dict.fromkeys(COUNTS), "graphs": 3},
        parts={"breaks": Part("skipped", "left out with --skip")},
    )
    head, (left_out, saved) = blocks(text(unknown))
    assert head[0].startswith("- calls ") and "None" not in head[0]
    assert numbers(head[1]) == [3] and head[1].count("-") == 5
    assert missing(left_out, "--skip", "breaks") == []
    assert RUN.id in saved


@pytest.mark.parametrize("findings", [(), (ITEM,)])
def test_what_select_leaves_out_is_counted(findings: tuple[Finding, ...]) -> None:
    status = "found" if findings else "passed"
    part = Part(status, "6 left out by --select or --ignore")
    shown = text(replace(CLEAN, findings=findings, parts={"breaks": part}))
    [said] = [line for line in shown.splitlines() if part.why in line]
    assert numbers(said) == ([1, 1, 6] if findings else [6])


def test_verbose_adds_evidence_and_intended_findings() -> None:
    shown = text(replace(RUN, findings=(ITEM, WANTED)), verbose=True)
    assert "     - PyTorch's GB0124" in shown.splitlines()
    assert "model.py:57:16  GB106 low (intentional)" in shown.splitlines()
    assert shown.count("GB106") == 1, "it has no list of its own"


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

    told = shown(GRAPHS).partition("CUDA graphs: ")[2]
    facts = ("2 recorded", "40 replays", "1 skip", "3.00 MiB", "88%")
    assert missing(told, *facts) == []
    assert "CUDA graphs:" not in shown(dict.fromkeys(GRAPHS))
    assert "CUDA graphs:" not in shown(dict.fromkeys(GRAPHS, 0))
