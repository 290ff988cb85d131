"""The document of a bench: times, costs, details, variants and the decision."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.records import Run
from torchproof.report import (
    bench_sections,
    commands,
    numbers,
    run_sections,
    verdicts,
)
from torchproof.report.agent import OUTPUT
from torchproof.report.charts import bars
from torchproof.report.document import Block, Items, Listing, Paragraph, Verdict, View
from torchproof.report.opening import first_lines, opening

_DO_NOT = "report a gain whose interval includes 1, or times of other runs"


def document(run: Run) -> Iterator[Block]:
    yield from opening(run, "torch.compile bench", _first(run))
    yield _verdict(run)
    yield from _answer(run, View.PAPER | View.AGENT)
    yield run_sections.strategies(run, "Strategies")
    yield run_sections.time(run)
    yield from run_sections.shapes(run)
    yield from run_sections.about(
        run, "Findings", "A bench does not look for findings."
    )
    notes = [f"{r.strategy}: {t}" for r in bench_sections.timed(run) for t in r.notes]
    yield Items(tuple(notes), label="note", views=View.AGENT)
    yield from _answer(run, View.TERMINAL)
    yield Paragraph(f"Saved as run {run.id}.", views=View.TERMINAL)
    if commands.kind(run.target) != "live":
        again = commands.of(run, "bench", "--baseline", run.id, *OUTPUT)
        yield Paragraph(again, "Verify an edit", views=View.AGENT)
    yield Paragraph(_DO_NOT, "Do not", views=View.AGENT)


def _first(run: Run) -> Iterator[str]:
    yield from first_lines(run)
    rounds = max((len(row.rounds_ms) for row in run.measurements), default=0)
    if rounds:
        every = dict.fromkeys(map(bench_sections.processes, run.measurements))
        sources = ", ".join(filter(None, every))
        covered = f" ({sources} per strategy)" if sources else " over processes"
        yield (
            f"median time per call with its 95 percent interval{covered}, in"
            f" {numbers.amount(rounds, 'round')} that interleave the strategies"
        )


def _answer(run: Run, views: View) -> Iterator[Block]:
    decision, row = bench_sections.chosen(run)
    yield Paragraph(f"{decision}.", "Decision", views=views)
    yield Listing(row.source if row else "", "python", views=views)


# -- the verdict -----------------------------------------------------------------------


def _verdict(run: Run) -> Verdict:
    decision, chosen = bench_sections.chosen(run)
    tones = {"keep compiled": "good", "not enough evidence": "open"}
    rows = bars.plain(run)
    eager = next((row for row in rows if row.strategy == "eager"), None)
    if chosen is None or chosen.strategy == "eager":
        compiled = [row for row in rows if row.verification == "verified"]
        chosen = min(compiled, key=lambda row: row.median_ms or 0.0, default=None)
    tone = tones.get(decision.word, "bad")
    verdict = Verdict(tone, decision.word, f"{decision.text}.")
    return verdicts.with_tiles(run, verdict, verdicts.worth(chosen, eager))
