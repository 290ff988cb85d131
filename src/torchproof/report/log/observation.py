"""The log entry of a run: summary, findings, key figures and artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from torchproof.measure import PATH_SUFFIXES, decision, name_of, ratio_text
from torchproof.records import (
    COUNTS,
    RUNS,
    SEVERITIES,
    Baseline,
    Finding,
    Measurement,
    Run,
    cells,
)
from torchproof.report import (
    bench_sections,
    fix_words,
    load_sections,
    markdown,
    numbers,
    run_words,
    search_words,
)
from torchproof.report.log.entry_markdown import Draft
from torchproof.report.log.expectations import best
from torchproof.report.markup import bullets, code, prose, table

_MOST = 12  # findings, or rows, that an entry lists
_COUNTS = COUNTS[: COUNTS.index("cudagraph_replays")]
_TIMES = (
    "Strategy",
    "Median step",
    "95% interval",
    "vs eager",
    "First call",
    "Peak memory",
    "Numerics",
    "Verdict",
)
_WORDS = {
    "keep compiled": "pays off",
    "stay eager": "does not pay off",
    "not enough evidence": "may or may not pay off",
}
_FACTS = ("python", "machine", "cores", "threads", "cuda", "size")


def draft(run: Run, came_from: str) -> Draft:
    """The entry of a run; `came_from` is the name that the user gave for it."""
    return Draft(
        kind="Observation",
        title=prose(f"{run.verb} of {run.target}, {_result(run)}"),
        sentence=sentence(run),
        facts=(("Run", f"{code(run.id)}, started {run.started or '-'}"),),
        sections=(
            ("Details", bullets(details(run))),
            ("Key figures", _figures(run)),
            ("Artifacts", bullets(_artifacts(run, came_from))),
        ),
    )


def sentence(run: Run) -> str:
    """The result in one sentence, for readers who do not know the run."""
    if why := run_words.incomplete(run):
        return f"The {run.verb} of {code(run.target)} is incomplete: {prose(why)}."
    where = run.environment.get("gpu") or run.environment.get("device")
    on = f" on {prose(str(where))}" if where else ""
    if run.verb == "bench":
        choice = decision(run)
        result = f"{_WORDS[choice.word]}{on}: {prose(choice.text).rstrip('.')}"
        return f"Compiling {code(run.target)} {result}."
    if run.verb == "tune":
        result = prose(search_words.decision(search_words.search_of(run)))
        return f"Result of the search for {code(run.target)}{on}: {result}"
    if run.verb == "fix":
        result = prose(fix_words.summary(run)).rstrip(".")
        return f"Fixes for {code(run.target)}{on}: {result}."
    if run.verb == "loadtest":
        test = load_sections.load_test_of(run)
        result = prose(load_sections.answer(test))
        load = prose(load_sections.question(test))
        return f"Load test of {code(run.target)}{on}, {load}. {result}."
    if run.counts.get("calls") is None and not run.environment.get("torch"):
        return f"The source of {code(run.target)} (not run) has {_found(run)}."
    result = _found(run, " since the previous run")
    return f"Compiled{on}, {code(run.target)} has {result}{_speed(run)}."


def _result(run: Run) -> str:
    if run_words.incomplete(run):
        return "incomplete"
    if run.verb == "tune":
        return search_words.search_of(run).chosen or "no strategy chosen"
    if run.verb == "fix":
        return fix_words.summary(run).rstrip(".")
    if run.verb == "loadtest":
        return load_sections.verdicts(load_sections.load_test_of(run))
    return decision(run).word if run.verb == "bench" else _found(run)


def _found(run: Run, since: str = "") -> str:
    findings = [f for f in run.findings if f.status == "open"]
    split = [(sum(f.severity == s for f in findings), s) for s in SEVERITIES]
    by_severity = ", ".join(f"{count} {severity}" for count, severity in split if count)
    text = f"{numbers.amount(len(findings), 'open finding')}"
    text = f"{text} ({by_severity})" if findings else "no open findings"
    gone = sum(f.status == "resolved" for f in run.findings)
    return text + (f", {gone} resolved{since}" if gone else "")


def _speed(run: Run) -> str:
    row = best(run)
    if row is None or row.vs_eager is None:
        return ""
    if row.verdict == "not significant":
        return "; its speed does not differ significantly from eager"
    return f", and is {ratio_text(row.vs_eager)} than eager"


# -- details ---------------------------------------------------------------------------


def details(run: Run) -> Iterator[str]:
    """Open findings by severity, resolved ones, the decision, and failed parts."""
    if run.verb == "fix":
        yield from _fixes(run)
        return
    if run.verb == "loadtest":
        yield from _load_test(run)
    open_ = [f for f in run.findings if f.status == "open"]
    open_.sort(key=lambda f: SEVERITIES.index(f.severity))
    yield from _listed(open_, lambda f: f"{f.severity}, {_facts(f)}", run)
    resolved = [f for f in run.findings if f.status == "resolved"]
    since = code(run.baseline.id or "-") if run.baseline else "the previous run"
    yield from _listed(resolved, lambda f: f"resolved since {since}: {_facts(f)}", run)
    intentional = sum(f.status == "intentional" for f in run.findings)
    if intentional:
        yield numbers.amount(intentional, "intentional finding")
    if run.verb == "bench":
        yield f"decision: {prose(str(decision(run)))}"
        yield from (prose(line) for line in bench_sections.not_ranked(run)[:_MOST])
    for name, part in run.parts.items():
        if part.status == "failed":
            yield f"part {name} failed: {prose(part.why)}"


def _fixes(run: Run) -> Iterator[str]:
    """What was fixed and how, what changed, and what is left."""
    for fix in fix_words.helpful(run)[:_MOST]:
        place, codes = code(fix_words.place(fix)), ", ".join(fix.codes)
        yield f"{fix.status}, {codes} {fix.tier} at {place}: {prose(fix.title)}"
    yield from (f"{n}: {old} -> {new}" for n, old, new in fix_words.changes(run))
    for each in fix_words.left(run)[:_MOST]:
        yield f"left, {_facts(each.finding)}; why: {prose(each.why)}"


def _load_test(run: Run) -> Iterator[str]:
    """What limits trust in the numbers, then why requests were slow."""
    test = load_sections.load_test_of(run)
    yield from map(prose, load_sections.remarks(test))
    for section in load_sections.slow_requests(test):
        each = [
            f"{load_sections.share(cause.share)} {load_sections.caused(cause)}"
            for cause in section.causes
        ]
        yield prose(f"{section.title}: {'; '.join([*each, section.rest])}")


def _listed(
    findings: Sequence[Finding], text_of: Callable[[Finding], str], run: Run
) -> Iterator[str]:
    yield from map(text_of, findings[:_MOST])
    if len(findings) > _MOST:
        more = f"{len(findings) - _MOST} more: torchproof show {run.id}"
        yield f"{findings[0].status}, {more}"


def _facts(finding: Finding) -> str:
    place = cells.place(finding.file, finding.line) if finding.file else "no location"
    cost = ""
    if finding.cost_us is not None:
        cost = f", {numbers.plain(finding.cost_us)} us per call"
    return f"{finding.code} at {code(place)}: {prose(finding.message)}{cost}"


# -- key figures -----------------------------------------------------------------------


def _figures(run: Run) -> str:
    """Counts with those of the previous run, then times of each strategy."""
    if run.verb == "loadtest":
        test = load_sections.load_test_of(run)
        latencies = load_sections.latencies(test, intervals=True)
        outcomes = load_sections.outcomes(test)
        return markdown.render([latencies, outcomes]).rstrip()
    tables = [_counts(run), _rows(run)]
    return "\n\n".join(filter(None, tables))


def _counts(run: Run) -> str:
    before = run.baseline or Baseline()
    old = {**(before.counts or {}), **_open(before.findings or {})}
    now = (
        {
            **run.counts,
            **_open(
                run_words.by_severity(f for f in run.findings if f.status == "open")
            ),
        }
        if run.verb == "check"
        else run.counts
    )
    names = [
        name
        for name in (*_COUNTS, *(f"open findings, {s}" for s in SEVERITIES))
        if now.get(name) is not None or old.get(name) is not None
    ]
    header = [
        "Figure",
        "Value",
        *([f"Before ({before.id or '-'})"] if run.baseline else []),
    ]
    cells = [
        [now.get(name), *([old.get(name)] if run.baseline else [])] for name in names
    ]
    rows = [
        [name.replace("_", " "), *map(numbers.count, values)]
        for name, values in zip(names, cells, strict=True)
    ]
    return table(header, rows) if rows else ""


def _open(tally: Mapping[str, int | None]) -> dict[str, int | None]:
    return {f"open findings, {severity}": count for severity, count in tally.items()}


def _rows(run: Run) -> str:
    """Eager and each strategy with intervals, then those of the previous run."""
    rows = [row for row in run.measurements if row.median_ms is not None]
    rows.sort(key=lambda row: bool(row.variant))
    listed = [(name_of(row), row) for row in rows[:_MOST]]
    for row in (run.baseline.measurements if run.baseline else None) or ():
        if row.median_ms is not None and not row.variant:
            listed += [(f"{row.strategy}, before", row)]
    if not listed:
        return ""
    more = len(rows) - _MOST
    rest = f"\n\n{more} more rows: torchproof show {run.id}" if more > 0 else ""
    return table(_TIMES, [(name, *_cells(row)) for name, row in listed]) + rest


def _cells(row: Measurement) -> tuple[str, ...]:
    return (
        numbers.milliseconds(row.median_ms),
        bench_sections.interval(row),
        bench_sections.gain(row),
        numbers.seconds(row.first_call_s),
        numbers.size(row.peak_bytes),
        bench_sections.numerics(row),
        bench_sections.verdict(row),
    )


# -- artifacts -------------------------------------------------------------------------


def _artifacts(run: Run, came_from: str) -> Iterator[str]:
    home = RUNS / run.id
    saved = (home / "run.json").is_file()
    path, name = (home.as_posix(), run.id) if saved else (came_from, came_from)
    yield f"run: {code(path)}, shown by {code(f'torchproof show {name}')}"
    if run.command:
        yield f"command: {code(run.command)}"
    facts = run.environment
    device = facts.get("gpu") or facts.get("device")
    details = [f"torch {facts['torch']}"] if facts.get("torch") else []
    details += [str(device)] if device else []
    details += [f"{name} {value}" for name in _FACTS if (value := facts.get(name))]
    details += ["in training"] if facts.get("train") else []
    if details:
        yield f"environment: {prose(', '.join(details))}"
    steering = [
        f"{name}={value}"
        for name, value in (facts.get("variables") or {}).items()
        # torchproof itself sets the remote caches.
        if not name.endswith((*PATH_SUFFIXES, "_REMOTE_CACHE"))
    ]
    if steering:
        yield f"variables: {code(', '.join(steering))}"
