"""Runs and comparisons as Markdown: tables for a report, a pull request, a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchproof.records import CATEGORIES, SEVERITIES, Finding, Measurement, Run
from torchproof.report import captures, numbers, sections
from torchproof.report import comparison as compared
from torchproof.verdict import Comparison, Metric, name_of

_TIMES = ("Strategy", "Median step", "Interval", "Peak memory", "vs eager")
_BASELINE = (*_TIMES, "First call", "Numerics", "Verdict")


def render(run: Run) -> str:
    blocks = _bench(run) if run.verb == "bench" else _check(run)
    return "\n\n".join(filter(None, blocks)) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; what would end a cell or a row early is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def baseline(rows: Iterable[Measurement]) -> str:
    """The table of a report: what each strategy takes and what it is worth."""
    return table(_BASELINE, map(_baseline, rows))


def environment(run: Run) -> str:
    """Where the numbers come from, in one line."""
    facts = run.environment
    device = facts.get("gpu") or facts.get("device")
    told = [f"`{run.target}`" + (f" ({facts['size']})" if facts.get("size") else "")]
    told += [str(device)] if device else []
    told += [f"torch {facts['torch']}"] if facts.get("torch") else []
    if facts.get("threads"):
        told.append(numbers.amount(facts["threads"], "thread"))
    return ", ".join([*told, f"run `{run.id}`"])


def of_section(found: sections.Table) -> str:
    """A section of a bench run: heading, table, sentences."""
    parts = [f"### {found.title}" if found.title else ""]
    parts += [table(found.header, found.rows) if found.rows else ""]
    parts += [_list(found.lines)]
    return "\n\n".join(filter(None, parts))


def _baseline(row: Measurement) -> tuple[str, ...]:
    gain = numbers.times(row.vs_eager, row.vs_eager_low, row.vs_eager_high)
    return (
        name_of(row),
        numbers.milliseconds(row.median_ms),
        numbers.interval(row.low_ms, row.high_ms),
        numbers.size(row.peak_bytes),
        "reference" if row.strategy == "eager" else gain,
        numbers.seconds(row.first_call_s),
        sections.numerics(row),
        row.verdict or numbers.UNKNOWN,
    )


def _bench(run: Run) -> Iterator[str]:
    yield f"## Bench of `{run.target}`"
    yield environment(run)
    if run.error or run.ending != "finished":
        yield f"Not complete: {run.error or f'the run was ended early ({run.ending})'}."
    rows = sections.ranked(run)
    if rows:
        yield baseline(rows)
    for row in rows:
        lines = list(sections.details(row))
        if lines:
            yield f"**{row.strategy}**\n\n{_list(lines)}"
    yield from map(of_section, sections.variants(run))
    missing = sections.not_ranked(run)
    if missing:
        yield f"### Not ranked\n\n{_list(missing)}"
    found, chosen = sections.chosen(run)
    yield f"**Decision: {found.word}**: {found.text}."
    if chosen and chosen.source:
        yield f"```python\n{chosen.source.rstrip()}\n```"


# -- check -----------------------------------------------------------------------------


def _check(run: Run) -> Iterator[str]:
    yield f"## Check of `{run.target}`"
    yield environment(run)
    if run.error or run.ending != "finished":
        yield f"Not complete: {run.error or f'the run was ended early ({run.ending})'}."
    known = {
        name.replace("_", " "): value
        for name, value in run.counts.items()
        if name not in captures.TOLD
    }
    yield table(list(known), [[numbers.count(v) for v in known.values()]])
    if said := captures.captured(run):
        yield f"{said}."
    still_open = [f for f in run.findings if f.status == "open"]
    yield _summary(still_open) if still_open else "No open findings."
    if run.findings:
        yield "### Findings"
        header = ("Place", "Code", "Severity", "Cost", "What", "Why", "Fix")
        yield table(header, map(_finding, run.findings))
    if any(not row.variant for row in run.measurements):
        yield f"### Measurements\n\n{baseline(sections.ranked(run))}"
    if run.parts:
        parts = [(name, part.status, part.why) for name, part in run.parts.items()]
        yield f"### Parts\n\n{table(('Part', 'Status', 'Why'), parts)}"


def _summary(findings: Sequence[Finding]) -> str:
    """Open findings by category and severity; the totals add up."""
    rows = []
    for category in dict.fromkeys(CATEGORIES.values()):
        mine = [f for f in findings if f.category == category]
        if mine:
            rows.append([category, *_tally(mine)])
    rows.append(["Total", *_tally(findings)])
    return table(("Category", *(s.capitalize() for s in SEVERITIES), "Total"), rows)


def _tally(findings: Sequence[Finding]) -> list[str]:
    split = [sum(f.severity == severity for f in findings) for severity in SEVERITIES]
    return [str(number) for number in (*split, len(findings))]


def _finding(finding: Finding) -> tuple[str, ...]:
    place = f"{finding.file}:{finding.line}" if finding.file else numbers.UNKNOWN
    cost = numbers.UNKNOWN
    if finding.cost_us is not None:
        cost = f"{numbers.plain(finding.cost_us)} us"
    mark = "" if finding.status == "open" else f" ({finding.status})"
    severity = f"{finding.severity}{mark}"
    told = (finding.message, finding.cause, finding.fix)
    return place, finding.code, severity, cost, *told


# -- compare ---------------------------------------------------------------------------


def of_comparison(found: Comparison) -> str:
    """What `torchproof compare --format md` prints."""
    runs = [
        (name, f"`{run['id']}`", f"`{run['target']}`")
        for name, run in (("A", found.a), ("B", found.b))
    ]
    blocks = ["## Comparison", table(("", "Run", "Target"), runs)]
    blocks.append(_list(compared.warnings(found)))
    for row in found.rows:
        blocks.append(f"### {row.name}")
        blocks.append(row.broken or row.note)
        blocks.append(_metrics(row.metrics))
    blocks.append(_metrics(found.counts))
    blocks.append(_list(compared.findings(found)))
    blocks += compared.summary(found)
    return "\n\n".join(filter(None, blocks)) + "\n"


def _metrics(metrics: Sequence[Metric]) -> str:
    known = [m for m in metrics if m.a is not None or m.b is not None]
    if not known:
        return ""
    rows = [
        (*compared.cells(metric), "regression" if metric.regression else metric.why)
        for metric in known
    ]
    return table(("Metric", "A", "B", "Verdict", ""), rows)


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")
