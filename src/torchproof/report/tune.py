"""The document of a search: the decision, the recipe, and the trials behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchproof.records import Measurement, Run, Trial, Tuning
from torchproof.report import run_sections, search_words, verdicts
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
    Verdict,
    View,
)
from torchproof.report.opening import first_lines, opening

_ORDER = (
    "Finalists come first: they were timed in interleaved rounds, the others briefly."
    " The objective sets the order, by the gain over eager measured at the same time."
)


def document(run: Run) -> Iterator[Block]:
    search = search_words.search_of(run)
    early = View.PAPER | View.AGENT
    yield from opening(run, "torch.compile tune", _first(run, search))
    yield verdicts.with_tiles(run, _verdict(search), verdicts.worth(*_winner(run)))
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
    yield from first_lines(run)
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
        Chart("plot", scatter.plot(search)),
        _leaderboard(ranked, search),
        legend,
        _brief(first, finals, search),
        _brief(rest, others, search),
        _full(first, finals, search),
        _full(rest, others, search),
        Items(tuple(ends), "Not ranked"),
        Items(tuple(left_out), "Not tried", views=~View.AGENT),
        Items(about, "The search", style="heading", views=View.PAGE),
    )
    return Section("Trials", blocks, "trials", str(len(search.trials)))


def _brief(title: str, rows: Sequence[Trial], search: Tuning) -> Table:
    """On a terminal, with a mark at the chosen strategy."""
    table = search_words.table(title, rows, search, brief=True)
    hint = "> marks the chosen strategy"
    lines = (*table.lines, hint) if any(_is_chosen(t, search) for t in rows) else ()
    chosen = search.chosen or ""
    return replace(
        table, lines=lines or table.lines, marked=chosen, views=View.TERMINAL
    )


def _full(title: str, rows: Sequence[Trial], search: Tuning) -> Table:
    table = search_words.table(title, rows, search)
    return replace(table, views=View.PAPER | View.AGENT)


def _leaderboard(ranked: Sequence[Trial], search: Tuning) -> Table:
    """All trials in one table, each with the number that it has in the plot."""
    table = search_words.table("", ranked, search)
    rows = tuple(
        (Cell(trial.name, _badge(trial, search), f"is-{_badge(trial, search)}"), *rest)
        for trial, (_, *rest) in zip(ranked, table.rows, strict=True)
    )
    marked, views = search.chosen or "", View.PAGE
    board = replace(table, rows=rows, lines=(), marked=marked, views=views)
    return replace(board, style="trials")


def _is_chosen(trial: Trial, search: Tuning) -> bool:
    return trial.name == search.chosen


def _badge(trial: Trial, search: Tuning) -> str:
    if _is_chosen(trial, search):
        return "chosen"
    return "finalist" if trial.final and not trial.is_eager else ""


def _by_candidate(run: Run) -> Run:
    """The run with its rows named after their candidates."""
    rows = [
        replace(row, strategy=search_words.label(row), variant={})
        for row in run.measurements
    ]
    return replace(run, measurements=tuple(rows))


# -- the verdict -----------------------------------------------------------------------


def _verdict(tuning: Tuning) -> Verdict:
    why = (tuning.why or "").rstrip(".")
    text = f"{why[:1].upper()}{why[1:]}." if why else ""
    more = tuple(filter(None, [" ".join(search_words.probed(tuning.probe))]))
    if not tuning.chosen:
        return Verdict("open", "no strategy chosen", text, more)
    if tuning.chosen == "eager":
        return Verdict("bad", "stay eager", text, more)
    return Verdict("good", f"use {tuning.chosen}", text, more)


def _winner(run: Run) -> tuple[Measurement | None, Measurement | None]:
    """The rows of the chosen strategy and of eager."""
    search, timed = search_words.search_of(run), search_words.finals(run)

    def row(trial: Trial | None) -> Measurement | None:
        return timed.get(trial.name, _row(trial)) if trial and trial.is_ranked else None

    eager = next((trial for trial in search.trials if trial.is_eager), None)
    return row(search_words.winner(search)), row(eager)


def _row(trial: Trial) -> Measurement:
    return Measurement(
        trial.name,
        median_ms=trial.step_ms,
        first_call_s=None if trial.is_warm else trial.first_call_s,
        peak_bytes=None if trial.peak_bytes is None else int(trial.peak_bytes),
        numerics=trial.numerics,
        vs_eager=trial.vs_eager,
        vs_eager_low=trial.vs_eager_low,
        vs_eager_high=trial.vs_eager_high,
    )
