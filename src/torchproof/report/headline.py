"""The headline of the page: the result in one sentence, and tiles with key numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torchproof.records import Measurement, Part, Run, Trial
from torchproof.report import (
    bench_sections,
    earlier_run,
    finding_block,
    fix_words,
    load_sections,
    numbers,
    run_words,
    search_words,
)
from torchproof.report.charts import bars
from torchproof.report.document import Tile, Verdict, View

_SHOWN = View.PAGE | View.REVIEW
LONGEST = 220  # characters of the worst finding's message


def headline(run: Run) -> Verdict:
    makers = {
        "bench": _of_bench,
        "tune": _of_tune,
        "fix": _of_fix,
        "loadtest": _of_load_test,
    }
    result = makers.get(run.verb, _of_check)(run)
    if why := run_words.incomplete(run):
        so_far = f"Results so far: {result.text}" if result.text else ""
        more = (so_far,) if so_far else ()
        result = Verdict("bad", "incomplete", f"{why}.", more)
    return replace(result, tiles=tuple(tiles(run)), views=_SHOWN)


def _of_bench(run: Run) -> Verdict:
    decision, _ = bench_sections.chosen(run)
    tones = {"keep compiled": "good", "not enough evidence": "open"}
    return Verdict(tones.get(decision.word, "bad"), decision.word, f"{decision.text}.")


def _of_tune(run: Run) -> Verdict:
    tuning = search_words.search_of(run)
    why = (tuning.why or "").rstrip(".")
    text = f"{why[:1].upper()}{why[1:]}." if why else ""
    more = tuple(filter(None, [" ".join(search_words.probed(tuning.probe))]))
    if not tuning.chosen:
        return Verdict("open", "no strategy chosen", text, more)
    if tuning.chosen == "eager":
        return Verdict("bad", "stay eager", text, more)
    return Verdict("good", f"use {tuning.chosen}", text, more)


def _of_fix(run: Run) -> Verdict:
    fixes, still = fix_words.helpful(run), fix_words.left(run)
    text = fix_words.summary(run)
    more = tuple(filter(None, (f"{fix_words.effort(run)}.", fix_words.note(run))))
    if not fixes:
        word = "no fix verified" if still else "nothing to fix"
        return Verdict("open" if still else "good", word, text, more)
    waiting = any(fix.status == "verified" for fix in fixes)
    word = "fixes verified" if waiting else "fixes applied"
    return Verdict("open" if waiting or still else "good", word, text, more)


def _of_load_test(run: Run) -> Verdict:
    test = load_sections.load_test_of(run)
    more = (_largest_cause(run),) if _largest_cause(run) else ()
    if test.objective is None:
        return Verdict("open", "no objective", load_sections.answer(test), more)
    text = f"{load_sections.objective(test.objective)}: {load_sections.verdicts(test)}."
    verdicts = [result.verdict for result in test.results]
    met = verdicts.count("met")
    if met and met == len(verdicts):
        return Verdict("good", "objective met", text, more)
    if met:
        word = f"objective met by {met} of {numbers.amount(len(verdicts), 'strategy')}"
        return Verdict("open", word, text, more)
    word = "undecided" if "undecided" in verdicts else "missed"
    tone = "bad" if word == "missed" else "open"
    return Verdict(tone, f"objective {word}", text, more)


def _largest_cause(run: Run) -> str:
    """The cause of slow requests with the largest excess, after the cold phase."""
    every = [
        (cause, result)
        for result in load_sections.load_test_of(run).results
        for cause in (result.tail.causes if result.tail else ())
    ]
    if not every:
        return ""
    cause, result = max(every, key=lambda each: each[0].excess_ms or 0.0)
    part = load_sections.share(cause.share)
    text = f"{cause.code} {cause.text}, {load_sections.involved(cause)}"
    return f"{part} of the excess of {result.strategy}'s slow requests: {text}."


def _of_check(run: Run) -> Verdict:
    listed = finding_block.by_severity(finding_block.blocks(run))
    open_ = [b.finding for b in listed if b.finding.status == "open"]
    first = finding_block.fix_first(run, finding_block.blocks(run)).rstrip(".")
    since = " ".join(earlier_run.verdict(run))  # it comes first
    sentences = (
        *run_words.failed_parts(run),
        first,
        run_words.call_time(run),
        run_words.captured(run),
        _resolved(run),
    )
    more = tuple(filter(None, sentences))
    more = tuple(f"{text[:1].upper()}{text[1:]}." for text in more)
    if not open_:
        tone, text = nothing(run)
        return Verdict(tone, "no findings", f"{since} {text}".strip(), more)
    worst = open_[0]
    tone = "bad" if worst.severity == "high" else "open"
    word = finding_block.totals(listed) or numbers.amount(len(open_), "open finding")
    cost = f" ({numbers.plain(worst.cost_us)} us per call)" if worst.cost_us else ""
    text = f"Most severe{cost}: {_shortened(worst.message)}."
    return Verdict(tone, word, f"{since} {text}".strip(), more)


def _resolved(run: Run) -> str:
    gone = sum(finding.status == "resolved" for finding in run.findings)
    if not gone or run.baseline is None:
        return ""
    verb = "is" if gone == 1 else "are"
    count = numbers.amount(gone, "finding")
    return f"{count} of run {run.baseline.id} {verb} resolved"


def _shortened(message: str) -> str:
    first = message.partition(";")[0]
    return first if len(first) <= LONGEST else f"{first[:LONGEST]} ..."


def nothing(run: Run) -> tuple[str, str]:
    """Tone and text without open findings; claims only what the run checked."""
    breaks = run.parts.get("breaks", Part("skipped"))
    failed = any(part.status == "failed" for part in run.parts.values())
    if breaks.status == "passed" and not failed:
        calls = run.counts.get("calls")
        in_calls = f" in {numbers.amount(calls, 'call')}" if calls else ""
        clean = f"No graph break, skipped frame, recompile or error{in_calls}"
        return "good", f"{clean}{', ' + breaks.why if breaks.why else ''}."
    if any(part.status == "passed" for part in run.parts.values()):
        return "open" if failed else "good", "No findings in the parts that ran."
    return "open", "No part of the check completed."


# -- tiles -----------------------------------------------------------------------------


def tiles(run: Run) -> list[Tile]:
    """The key numbers; a value that was not measured has no tile."""
    if run.verb == "tune":
        return [*_worth(*_winner(run))]
    if run.verb == "fix":
        return [
            Tile(name[:1].upper() + name[1:], after, f"{before} before the fixes")
            for name, before, after in fix_words.changes(run)
        ]
    if run.verb == "loadtest":
        return [*_served(run)]
    rows = bars.plain(run)
    eager = next((row for row in rows if row.strategy == "eager"), None)
    counts = [] if run.verb == "bench" else [*_counted(run)]
    return [*counts, *_worth(_best(run, rows), eager)]


def _counted(run: Run) -> Iterator[Tile]:
    open_ = [finding for finding in run.findings if finding.status == "open"]
    yield Tile("Open findings", str(len(open_)), run_words.severities(open_))
    counts, calls = run.counts, run.counts.get("calls")
    if calls is not None and counts.get("compiled_calls") is not None:
        yield Tile("Compiled calls", f"{counts['compiled_calls']} of {calls}")
    yield from _count(counts, "graph_breaks", "Graph breaks", "graph")
    yield from _count(counts, "recompiles", "Recompiles", "skipped frame")


def _count(
    counts: Mapping[str, int | None], name: str, label: str, other_label: str
) -> Iterator[Tile]:
    number, other = counts.get(name), counts.get(f"{other_label.replace(' ', '_')}s")
    if number is not None:
        note = "" if other is None else numbers.amount(other, other_label)
        yield Tile(label, str(number), note)


def _best(run: Run, rows: Sequence[Measurement]) -> Measurement | None:
    """The row that the decision recommends, else the fastest compiled one.

    A check is about one strategy, whatever else it measures, and right or wrong.
    """
    if run.verb == "check":
        alike = [r for r in run.measurements if dict(r.variant) == bars.shared(run)]
        compiled = [r for r in alike if r.strategy != "eager"]
        return next((r for r in compiled if numbers.known(r.median_ms)), None)
    chosen = bench_sections.chosen(run)[1] if run.verb == "bench" else None
    if chosen is not None and chosen.strategy != "eager":
        return chosen
    compiled = [row for row in rows if row.verification == "verified"]
    return min(compiled, key=lambda row: row.median_ms or 0.0, default=None)


def _served(run: Run) -> Iterator[Tile]:
    """The numbers of the strategy with the shortest tail, preferably one that met."""
    test = load_sections.load_test_of(run)
    result = load_sections.best(test)
    if result is None:
        return
    name = result.strategy
    for percent in (50.0, load_sections.judged_percent(test)):
        row = load_sections.at(load_sections.latency_of(result), percent)
        if row and row.value_ms is not None:
            spread = numbers.interval(row.low_ms, row.high_ms)
            note = name if spread == numbers.UNKNOWN else f"{name}, {spread}"
            label = f"Latency {load_sections.percent_name(percent)}"
            yield Tile(label, numbers.milliseconds(row.value_ms), note)
    if result.goodput_rate is not None:
        offered = numbers.per_second(result.offered_rate)
        value = numbers.per_second(result.goodput_rate)
        yield Tile("Goodput", value, f"{name}, of {offered} offered")
    cold = result.cold
    if result.first_answer_after_s is not None:
        waited = numbers.seconds(result.first_answer_after_s)
        yield Tile("First answer", waited, name)
    if cold and cold.missed is not None:
        note = f"{name}, of {numbers.amount(cold.requests, 'request')}"
        yield Tile("Missed until warm", str(cold.missed), note)
    if result.highest_rate is not None:
        yield Tile("Highest rate", numbers.per_second(result.highest_rate), name)


def _worth(row: Measurement | None, eager: Measurement | None) -> Iterator[Tile]:
    if row is None:
        return
    if row.vs_eager is not None:
        gain = row.verdict or numbers.times(row.vs_eager, None, None)
        yield Tile("Against eager", gain, f"{row.strategy}, {_spread(row)}")
    if row.median_ms is not None:
        note = f"eager {numbers.milliseconds(eager.median_ms)}" if eager else ""
        yield Tile("Median call", numbers.milliseconds(row.median_ms), note)
    if row.first_call_s is not None:
        paid = f"break-even: {row.break_even}" if row.break_even else ""
        yield Tile("First call", numbers.seconds(row.first_call_s), paid)
    if row.peak_bytes is not None:
        has_memory = eager is not None and eager.peak_bytes is not None
        note = f"eager {numbers.size(eager.peak_bytes)}" if eager and has_memory else ""
        yield Tile("Peak memory", numbers.size(row.peak_bytes), note)
    if bench_sections.numerics(row) != numbers.UNKNOWN:
        reference = (row.numerics or {}).get("reference")
        note = f"compared with {reference}" if reference else ""
        yield Tile("Outputs", bench_sections.numerics(row), note)


def _spread(row: Measurement) -> str:
    """The interval of the gain, in the direction of the verdict."""
    low, high = row.vs_eager_low, row.vs_eager_high
    if low and high and high < 1:
        low, high = 1 / high, 1 / low
    return numbers.interval(low, high)


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
