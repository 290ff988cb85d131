"""The document of a search: the decision, the recipe, and the trials behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchproof.records import Run, Trial, Tuning
from torchproof.report import run_sections, search_words
from torchproof.report.charts import scatter
from torchproof.report.document import (
    Block,
    Cell,
    Chart,
    Code,
    Items,
    Listing,
    Paragraph,
    Section,
    Table,
    View,
)
from torchproof.report.headline import headline
from torchproof.report.opening import measured, opening

_ORDER = (
    "Finalists come first: they were timed in interleaved rounds, the others briefly."
    " The objective sets the order, by the gain over eager measured at the same time."
)


def document(run: Run) -> Iterator[Block]:
    search = search_words.search_of(run)
    early = View.PAPER | View.AGENT
    yield from opening(run, "torch.compile tune", _first(run, search))
    yield headline(run)
    decision = search_words.decision(search)
    yield Paragraph(decision, "Decision", views=early)
    recipe = tuple(_recipe(run, search))
    yield Section("The recipe", recipe, "recipe", label="Recipe", views=View.PAGE)
    yield from (_seen_by(block, early) for block in recipe)
    about = tuple(search_words.about(search))
    yield Section("The search", (Items(about),), views=View.PAPER)
    yield _trials(search, about)
    named = _by_candidate(run)
    finals = replace(run_sections.strategies(named, "Finals"), views=View.PAGE)
    yield finals
    details = run_sections.details(search_words.finals(run).items(), View.PAPER)
    yield replace(details, title="Other measurements of the finalists")
    yield run_sections.time(named)
    yield from run_sections.about(named, "Findings")
    yield Paragraph(decision, "Decision", views=View.TERMINAL)
    yield from (_seen_by(block, View.TERMINAL) for block in recipe)
    yield Paragraph(f"Saved as run {run.id}.", views=View.TERMINAL)


def _seen_by(block: Block, views: View) -> Block:
    return replace(block, views=block.views & views)


def _first(run: Run, search: Tuning) -> Iterator[str]:
    yield from measured(run)
    yield from search_words.about(search)


def _recipe(run: Run, search: Tuning) -> Iterator[Block]:
    lines, page = search_words.code_lines(search), View.PAGE
    caption = f"Code for {search.chosen or 'the recipe'}"
    yield Listing(lines, "python", views=~page)
    yield Listing(lines, "python", caption, anchor="recipe-lines", views=page)
    none = "" if lines.strip() else "There is no code for this result."
    yield Paragraph(none, views=page)
    if again := search_words.to_go_on(run):
        yield Paragraph(("To resume the search: ", Code(again)), views=~View.AGENT)
    if search.recipe_file:
        file = Code(search.recipe_file)
        yield Listing(
            search_words.applied(search),
            "python",
            ("The recipe is in ", file, ". To use it"),
            label=f"recipe: {file}\nuse it",
            anchor="recipe-file",
        )


def _trials(search: Tuning, about: tuple[str, ...]) -> Section:
    """The trials with a rank, those that failed, and those that were not made."""
    ranked, failed = search_words.ranked(search), search_words.failed(search)
    finals = [trial for trial in ranked if trial.final]
    others = [trial for trial in ranked if not trial.final]
    first = "Finalists, timed in interleaved rounds"
    rest = "Other trials, timed briefly" if finals else "Trials, timed briefly"
    ends = [f"{t.name} {search_words.why_not_ranked(t)}" for t in failed]
    left_out = [
        f"{', '.join(names)}: {why}"
        for why, names in search_words.left_out(search).items()
    ]
    warm = f" {search_words.WARM}." if any(t.is_warm for t in ranked) else ""
    legend = Paragraph(
        f"{_ORDER}{warm}" if ranked else "", style="legend", views=View.PAGE
    )
    blocks = (
        Chart("scatter", scatter.plot(search)),
        _leaderboard(ranked, search),
        legend,
        _table(first, finals, search, View.TERMINAL),
        _table(rest, others, search, View.TERMINAL),
        _table(first, finals, search, View.PAPER | View.AGENT),
        _table(rest, others, search, View.PAPER | View.AGENT),
        Items(tuple(ends), "Not ranked"),
        Items(tuple(left_out), "Not tried", views=~View.AGENT),
        Items(about, "The search", style="heading", views=View.PAGE),
    )
    return Section("Trials", blocks, "trials", str(len(search.trials)))


def _table(title: str, rows: Sequence[Trial], search: Tuning, views: View) -> Table:
    brief, chosen = views is View.TERMINAL, search.chosen or ""
    lines = [search_words.WARM] if any(trial.is_warm for trial in rows) else []
    header, cells = search_words.full_table(rows, search)
    if brief:
        header = search_words.columns(search)
        cells = tuple(search_words.cells(trial, search) for trial in rows)
        if any(trial.name == search.chosen for trial in rows):
            lines.append("> marks the chosen strategy")
    marked = chosen if brief else None
    return Table(title, header, cells, tuple(lines), marked, views=views)


def _leaderboard(ranked: Sequence[Trial], search: Tuning) -> Table:
    """All trials in one table, each with the number that it has in the plot."""
    header, cells = search_words.full_table(ranked, search)
    rows: list[tuple[str | Cell, ...]] = [
        (Cell(row[0], _badge(trial, search), f"is-{_badge(trial, search)}"), *row[1:])
        for trial, row in zip(ranked, cells, strict=True)
    ]
    marked = search.chosen or ""
    return Table("", header, tuple(rows), (), marked, "trials", views=View.PAGE)


def _badge(trial: Trial, search: Tuning) -> str:
    if trial.name == search.chosen:
        return "chosen"
    return "finalist" if trial.final and not trial.is_eager else ""


def _by_candidate(run: Run) -> Run:
    """The run with its rows named after their candidates."""
    rows = [
        replace(row, strategy=search_words.label(row), variant={})
        for row in run.measurements
    ]
    return replace(run, measurements=tuple(rows))
