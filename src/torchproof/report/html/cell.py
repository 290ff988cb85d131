"""Renders a run as the output of a notebook cell: a fragment of HTML from cell.html.

It has no script and no style sheet, because a notebook may remove them. All colours are
the notebook's own, or translucent, so that they suit a light and a dark theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torchproof.records import Run
from torchproof.report import bench_sections, finding_block, fix_words, html, numbers
from torchproof.report.document import Block, Verdict

_MOST = 20  # findings


def render(
    run: Run,
    blocks: Iterable[Block],
    text: str,
    cells: Mapping[str, str] | None = None,
) -> str:
    """The output of a cell; `text` is the whole report, `cells` are new texts."""
    findings = finding_block.by_severity(finding_block.blocks(run))
    open_ones = [each for each in findings if each.finding.status == "open"]
    shown = open_ones if run.verb in ("check", "loadtest") else []
    return (
        html.templates()
        .get_template("cell.html")
        .render(
            run=run,
            headline=next(b for b in blocks if isinstance(b, Verdict)),
            findings=shown[:_MOST],
            more=len(shown[_MOST:]),
            drafts=finding_block.about_drafts(run, shown[:_MOST]),
            rows=list(_rows(run)),
            fixes=fix_words.fix_blocks(run) if run.verb == "fix" else (),
            cells=cells or {},
            note=_note(run),
            skipped=list(_skipped(run)),
            text=text,
        )
    )


def _rows(run: Run) -> Iterator[tuple[str, ...]]:
    for row in bench_sections.timed(run) if run.verb == "bench" else ():
        yield (
            row.strategy,
            numbers.milliseconds(row.median_ms),
            bench_sections.interval(row),
            numbers.times(row.vs_eager, row.vs_eager_low, row.vs_eager_high),
            numbers.seconds(row.first_call_s),
            bench_sections.verdict(row),
        )


def _note(run: Run) -> str:
    """What the report says about part breaks."""
    part = run.parts.get("breaks")
    ran = part is not None and part.status in ("passed", "found")
    return f"Part breaks ran {part.why}." if part and ran and part.why else ""


def _skipped(run: Run) -> Iterator[tuple[str, str]]:
    """The parts that could not run, not those that nobody asked for."""
    for name, part in run.parts.items():
        is_wanted = part.limit not in ("effort", "flag")
        could_not_run = part.status == "skipped" and part.why and is_wanted
        if could_not_run or part.status == "failed":
            yield name, part.why
