"""The section of a document about the ranks of a run."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.records import Run
from torchproof.report import rank_sections
from torchproof.report.charts import ranks as chart
from torchproof.report.document import (
    Block,
    Chart,
    Fold,
    Group,
    Items,
    Listing,
    Paragraph,
    Section,
    View,
)

_FEW_FUNCTIONS, _FEW_WAITS = 8, 5  # on a terminal, unless it is verbose
_FEW_ROWS = 8  # that a page shows at once


def section(run: Run, *, verbose: bool) -> Iterator[Block]:
    """The functions and waits of all ranks, and a line of letters for each."""
    ranks, brief = run.ranks, View.TERMINAL
    if ranks is None:
        return
    functions = rank_sections.functions(ranks)
    few = rank_sections.functions(ranks, None if verbose else _FEW_FUNCTIONS, brief)
    waits = tuple(rank_sections.waits(ranks))
    longest = tuple(rank_sections.waits(ranks, None if verbose else _FEW_WAITS))
    letters = rank_sections.timeline(ranks)
    failed = rank_sections.timeout(ranks)
    blocks: list[Block] = [
        Paragraph(f"{failed}." if failed else "", style="strong", views=View.READ),
        functions,
        few,
        Chart("lanes", chart.timeline(ranks), "Timeline, from the first compile on"),
    ]
    title, is_short = f"Waits in collectives ({len(waits)})", len(waits) < _FEW_ROWS
    blocks.append(Fold(title, (Items(waits),), is_short, views=View.READ))
    blocks.append(Items(longest, "Waits in collectives", views=brief))
    text = View.TERMINAL | View.PAPER
    legend = Paragraph("".join(letters[-1:]), style="aside")
    lanes = Listing("\n".join(letters[:-1]), "text")
    blocks.append(Group((lanes, legend), views=text))
    unseen = tuple(f"Not observed: {note}." for note in ranks.notes)
    blocks.append(Items(unseen, style="sentences"))
    summary, views = rank_sections.summary(ranks), View.ALL & ~View.AGENT
    yield Section("Ranks", tuple(blocks), "ranks", summary, views=views)
