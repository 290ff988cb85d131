"""The findings of the page, their code excerpts, and the values of the filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchproof.records import SEVERITIES, CauseTree, Finding, Run
from torchproof.report import cause_words, commands, numbers, run_words, source_columns
from torchproof.report.finding_section import impact, reference
from torchproof.report.html import charts

PAGE = 100  # findings shown at once
_HOME = Path(__file__).parents[3].as_posix() + "/"  # the parent of the package
STATUSES = ("open", "resolved", "intentional")
LONGEST_LINE = 400  # characters
MOST_LINES = 24


@dataclass(frozen=True)
class Line:
    """A line of code in three parts: `before`, `marked` and `after`."""

    number: int
    before: str
    marked: str = ""
    after: str = ""
    here: bool = False


@dataclass(frozen=True)
class Entry:
    finding: Finding
    run: Run
    anchor: str  # the same in later runs, so that links keep working
    cost: str = ""
    often: str = ""
    effects: tuple[Entry, ...] = ()  # what the finding explains
    explains: str = ""
    follows: str = ""  # the findings that explain it

    @property
    def place(self) -> str:
        """Empty for a finding without a location."""
        return at_home(run_words.place(self.finding)) if self.finding.file else ""

    @property
    def lines(self) -> list[Line]:
        return code_lines(self.finding)

    @property
    def impact(self) -> str:
        return impact(self.finding)

    @property
    def reference(self) -> str | None:
        return reference(self.finding, self.run.rules.get(self.finding.code))

    @property
    def verification(self) -> str:
        return commands.verification(self.finding, self.run)


@dataclass(frozen=True)
class Choice:
    """A filter: its values, each with its number of findings."""

    name: str
    label: str
    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Cost:
    entry: Entry
    length: float


def at_home(path: str) -> str:
    """A file of torchproof itself, relative to the parent of the package."""
    return path.removeprefix(_HOME)


def entries(run: Run) -> list[Entry]:
    """The findings: open ones first, then by severity, then by cost.

    A finding that another explains is an entry below that one.
    """
    tree, counts = CauseTree(run.findings), Counter[str]()
    listed: list[Entry] = []
    below: dict[int, list[Entry]] = {}
    roots = {id(f): c for c in tree.causes for f in tree.effects(c)}
    for finding in sorted(run.findings, key=lambda f: _rank(f, tree)):
        name = f"f-{finding.identity}"
        anchor = f"{name}-{counts[name]}" if counts[name] else name
        counts[name] += 1
        texts = _cost(finding), _often(finding, run)
        entry = Entry(finding, run, anchor, *texts)
        if id(finding) in roots:
            follows = _follows(finding, tree)
            cause = id(roots[id(finding)])
            below.setdefault(cause, []).append(replace(entry, follows=follows))
        else:
            listed.append(entry)
    return [_with_effects(entry, below.get(id(entry.finding), ())) for entry in listed]


def everything(listed: Sequence[Entry]) -> list[Entry]:
    """All entries, with those below others."""
    return [each for entry in listed for each in (entry, *entry.effects)]


def _with_effects(entry: Entry, effects: Sequence[Entry]) -> Entry:
    if not effects:
        return entry
    explains = cause_words.also_explains([each.finding for each in effects])
    return replace(entry, effects=tuple(effects), explains=explains)


def _follows(finding: Finding, tree: CauseTree) -> str:
    text = f"{at_home(cause_words.follows_from(finding, tree))} ({finding.certainty})"
    return f"{text}: {finding.because}" if finding.because else text


def _rank(finding: Finding, tree: CauseTree) -> tuple[int, int, float]:
    """The order of the run decides among equals: it begins with what explains most."""
    effects = tree.effects(finding)
    known = [f.cost_us for f in (finding, *effects) if charts.known(f.cost_us)]
    cost = sum(each for each in known if each is not None)
    status = STATUSES.index(finding.status) if finding.status in STATUSES else 3
    severity = SEVERITIES.index(tree.severity(finding))
    return status, severity, -cost


def _cost(finding: Finding) -> str:
    if not charts.known(finding.cost_us):
        return ""
    return f"{numbers.plain(finding.cost_us)} us/call"


def _often(finding: Finding, run: Run) -> str:
    """`in 5 of 6 calls, 12 times`; empty if it was not counted."""
    calls, parts = run.counts.get("calls"), []
    if finding.steps is not None and calls:
        parts.append(f"in {finding.steps} of {numbers.amount(calls, 'call')}")
    if finding.count is not None and finding.count != finding.steps:
        parts.append(numbers.amount(finding.count, "time"))
    return ", ".join(parts)


def choices(listed: Sequence[Entry]) -> list[Choice]:
    """The filters with their values; a filter with a single value is omitted."""
    severities = Counter(entry.finding.severity for entry in listed)
    present = [(name, severities[name]) for name in SEVERITIES if severities[name]]
    filters = [Choice("severity", "Severity", tuple(present))]
    for name, label in (
        ("category", "Category"),
        ("kind", "Kind"),
        ("status", "Status"),
        ("origin", "Origin"),
    ):
        values = Counter(str(getattr(entry.finding, name)) for entry in listed)
        filters.append(Choice(name, label, tuple(values.most_common())))
    return [each for each in filters if len(each.values) > 1]


def costs(listed: Sequence[Entry]) -> list[Cost]:
    """The open findings with the highest measured costs."""
    every = everything(listed)
    costly = [e for e in every if e.cost and e.finding.status == "open"]
    costly.sort(key=lambda entry: -(entry.finding.cost_us or 0.0))
    most = max((e.finding.cost_us or 0.0 for e in costly), default=0.0) or 1.0
    return [
        Cost(entry, round(100 * (entry.finding.cost_us or 0.0) / most, 2))
        for entry in costly[: charts.MOST]
    ]


# -- code excerpts ---------------------------------------------------------------------


def code_lines(finding: Finding) -> list[Line]:
    """The lines around a finding, with its own line and columns marked.

    Empty if the run holds no source for the finding.
    """
    at = finding.line
    if at is None:
        return []
    texts, first = list(finding.context), finding.context_from
    if not texts or first is None or not first <= at < first + len(texts):
        texts, first = [finding.source or ""], at
    skipped = max(0, at - first - MOST_LINES // 2)
    texts, first = texts[skipped : skipped + MOST_LINES], first + skipped
    if not any(text.strip() for text in texts):
        return []
    indent = min(len(t) - len(t.lstrip()) for t in texts if t.strip())
    return [
        _line(finding, text, number, indent) for number, text in enumerate(texts, first)
    ]


def _line(finding: Finding, text: str, number: int, indent: int) -> Line:
    if number != finding.line:
        return Line(number, _short(text[indent:].rstrip()))
    start, end = (
        max(indent, column) for column in source_columns.marked(finding, text)
    )
    code = text.rstrip()
    before, marked, after = code[indent:start], code[start:end], code[end:]
    return Line(number, _short(before), _short(marked), _short(after), here=True)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + " ..."
