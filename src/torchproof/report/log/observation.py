"""Drafts the entry of a run: its result, details, key figures and artifacts."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.measure import PATH_SUFFIXES
from torchproof.records import RUNS, Run
from torchproof.report import (
    bench_sections,
    earlier_run,
    finding_block,
    fix_words,
    load_sections,
    markdown,
    run_words,
)
from torchproof.report.document import Block, Code, Table, Text, Verdict
from torchproof.report.formats import document
from torchproof.report.log.entry_markdown import Draft
from torchproof.report.markup import bullets, code, prose

_MOST = 12  # findings, or rows, that an entry lists
_FACTS = ("python", "machine", "cores", "threads", "cuda", "size")


def draft(run: Run, came_from: str) -> Draft:
    """The entry of a run; `came_from` is the name that the user gave for it."""
    return Draft(
        kind="Observation",
        title=prose(f"{run.verb} of {run.target}, {verdict_of(run).word}"),
        sentence=sentence(run),
        facts=(("Run", f"{code(run.id)}, started {run.started or '-'}"),),
        sections=(
            ("Details", bullets(details(run))),
            ("Key figures", markdown.render(_figures(run)).rstrip()),
            ("Artifacts", bullets(_artifacts(run, came_from))),
        ),
    )


def sentence(run: Run) -> str:
    """The result in a sentence, for readers who do not know the run."""
    verdict = verdict_of(run)
    where = run.environment.get("gpu") or run.environment.get("device")
    on = f" on {prose(str(where))}" if where else ""
    result = prose(f"{verdict.word}: {verdict.text}".strip(": ").rstrip("."))
    return f"{run.verb.capitalize()} of {code(run.target)}{on}: {result}."


def verdict_of(run: Run) -> Verdict:
    return next(each for each in document(run) if isinstance(each, Verdict))


# -- details ---------------------------------------------------------------------------


def details(run: Run) -> Iterator[str]:
    """What else the verdict says, then findings, fixes, and what limits trust."""
    yield from map(prose, verdict_of(run).more)
    yield from map(markdown.inline, _findings(run))
    yield from map(markdown.inline, _fixes(run))
    yield from map(prose, bench_sections.not_ranked(run)[:_MOST])
    test = load_sections.load_test_of(run)
    yield from map(prose, load_sections.remarks(test))
    for section in load_sections.slow_requests(test):
        each = [
            f"{load_sections.share(cause.share)} {load_sections.caused(cause)}"
            for cause in section.causes
        ]
        yield prose(f"{section.title}: {'; '.join([*each, section.rest])}")


def _findings(run: Run) -> Iterator[Text]:
    """Those of a check by severity; the others are in the sections of the verb."""
    listed = [] if run.verb == "fix" else finding_block.blocks(run)
    every = finding_block.everything(finding_block.by_severity(listed))
    since = f" since {run.baseline.id}" if run.baseline else ""
    for block in every[:_MOST]:
        f = block.finding
        how: str = f.severity if f.status == "open" else f.status
        how += since if f.status == "resolved" else ""
        cost = f", {block.cost}" if block.cost else ""
        place = Code(block.place) if block.place else "no location"
        yield f"{how}, {f.code} at ", place, f": {f.message}{cost}"
    if len(every) > _MOST:
        yield f"{len(every) - _MOST} more: torchproof show {run.id}"


def _fixes(run: Run) -> Iterator[Text]:
    """What was fixed and how, and what is left."""
    if run.verb != "fix":
        return
    for fix in fix_words.helpful(run)[:_MOST]:
        codes, place = ", ".join(fix.codes), Code(fix_words.place(fix))
        yield f"{fix.status}, {codes} {fix.tier} at ", place, f": {fix.title}"
    yield from (f"{n}: {old} -> {new}" for n, old, new in fix_words.changes(run))
    for each in fix_words.left(run)[:_MOST]:
        place, f = Code(run_words.place(each.finding)), each.finding
        yield f"left, {f.code} at ", place, f": {f.message}; why: {each.why}"


# -- key figures -----------------------------------------------------------------------


def _figures(run: Run) -> Iterator[Block]:
    """Counts and times, with those of the previous run."""
    test = load_sections.load_test_of(run)
    if test.results:
        yield load_sections.latencies(test, intervals=True)
        yield load_sections.outcomes(test)
    before = run.baseline
    header: tuple[str, ...] = ("figure", "value")
    rows: list[tuple[str, ...]] = [
        (change.name, change.after) for change in earlier_run.counts(run)
    ]
    if before:
        header = ("figure", "value", f"before ({before.id or '-'})")
        rows = [(c.name, c.after, c.before) for c in earlier_run.counts(run)]
    yield Table("", header, tuple(rows))
    timed = [row for row in run.measurements if row.median_ms is not None]
    timed.sort(key=lambda row: bool(row.variant))
    more = f"{len(timed) - _MOST} more rows: torchproof show {run.id}"
    lines = (more,) if len(timed) > _MOST else ()
    table = bench_sections.measured(timed[:_MOST])
    yield Table("", table.header, table.rows, lines)


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
