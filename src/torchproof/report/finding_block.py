"""One finding with all that a report says about it, in the words of every format."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchproof.records import (
    CATEGORIES,
    SEVERITIES,
    CauseTree,
    Finding,
    Replacement,
    RuleText,
    Run,
    cells,
    diff_names,
    line,
    ranks_in_words,
    unbroken,
)
from torchproof.report import commands, numbers, run_words
from torchproof.report.document import Block, Diff, Link, Text

# Where torch explains each of its graph breaks, by number.
_BREAK_SITES = (
    "https://meta-pytorch.github.io/compile-graph-break-site/",
    "https://meta-pytorch.org/compile-graph-break-site/",
)
_TITLE = 150  # characters; a longer message is repeated below the heading
_LONGEST_LINE = 400  # characters
_BEFORE, _AFTER = 12, 11  # lines of source around the line of a finding
# The effect of each kind of finding on the program.
IMPACT = {
    "graph_break": "the graph ends here, and Python runs before the next graph",
    "skipped_frame": "Dynamo skips the function, and all of it runs eagerly",
    "no_op": "no compiled code runs here, so compilation has no benefit",
    "compile_error": "the compilation fails here",
    "host_sync": "the host waits for the device",
    "recompile": "the function is compiled again while its caller waits",
    "recompile_limit": "torch stops compiling the function and runs it eagerly",
    "specialization": "other sizes recompile the function, or fail",
    "cudagraph_skip": "no CUDA graph captures this: Python launches each kernel",
    "cudagraph_lifetime": "memory in use is overwritten: wrong values, or an error",
    "cudagraph_rerecord": "a CUDA graph is recorded again, which takes time and memory",
    "numerics": "compiled outputs differ from eager outputs",
    "stale_state": "compiled code misses a change of state that eager code sees",
    "slowdown": "compiled code is not faster than eager",
    "compile_time": "compilation takes longer than necessary",
    "memory": "compiled code needs more device memory than eager",
    "latency": "requests wait longer when the target is served under load",
    "rank_difference": "other ranks wait in their next collective, or time out",
    "config": "a setting or a call has no effect, or not the intended one",
    "hazard": "it may fail when it is compiled",
}
ORIGINS = {
    "static": "found in the source",
    "dynamic": "observed in the run",
    "both": "found in the source and observed in the run",
}
_NOUNS = {
    "graph_break": "graph break",
    "skipped_frame": "skipped frame",
    "recompile_limit": "recompile limit",
    "specialization": "fixed size",
}


@dataclass(frozen=True, eq=False)
class FindingBlock(Block):
    """A finding of a run; `effects` are the findings that it explains."""

    finding: Finding
    run: Run
    tree: CauseTree
    anchor: str  # the same in later runs, so that links keep working
    effects: tuple[FindingBlock, ...] = ()

    @property
    def place(self) -> str:
        """`model.py:42`; empty for a finding without a location."""
        return run_words.place(self.finding) if self.finding.file else ""

    @property
    def path(self) -> str:
        """`file:line:column`, with a path that opens; `-` without one."""
        finding = self.finding
        if finding.file is None:
            return numbers.UNKNOWN
        text = cells.place(finding.file, finding.line)
        return f"{text}{self._column}"

    @property
    def _column(self) -> str:
        is_cell = cells.name_in(self.finding.file or "")
        return f":{self.finding.column}" if self.finding.column and not is_cell else ""

    @property
    def position(self) -> str:
        """`model.py:42:8`, without the directories above a package."""
        return f"{self.place or numbers.UNKNOWN}{self._column if self.place else ''}"

    @property
    def severity(self) -> str:
        """Of the worst finding that disappears with this one."""
        return self.tree.severity(self.finding)

    @property
    def is_effect(self) -> bool:
        return self.tree.is_effect(self.finding)

    @property
    def rule(self) -> RuleText | None:
        return self.run.rules.get(self.finding.code)

    @property
    def ranks(self) -> str:
        """`rank 1 only`, for a finding of one process that not all ranks have."""
        finding, ranks = self.finding, self.run.ranks
        if ranks is None or not finding.ranks or finding.kind == "rank_difference":
            return ""
        if len(finding.ranks) >= len(ranks.ranks):
            return ""
        return f"{ranks_in_words(finding.ranks)} only"

    @property
    def title(self) -> str:
        """The message, cut to the length of a heading, never inside a code span."""
        return brief(line(self.finding.message), _TITLE)

    @property
    def in_one_line(self) -> Text:
        place = Link(self.place or numbers.UNKNOWN, self.anchor)
        return place, f"  {self.finding.code}  {self.finding.message}"

    @property
    def category(self) -> str:
        """The category of the summary; a hazard also names the one it suspects."""
        suspected = CATEGORIES.get(self.finding.suspects or "")
        if self.finding.kind != "hazard" or suspected is None:
            return self.finding.category
        return f"{self.finding.category} (suspected: {suspected})"

    @property
    def cost(self) -> str:
        """`180 us/call`; empty if it was not measured."""
        cost = self.finding.cost_us
        return f"{numbers.plain(cost)} us/call" if numbers.known(cost) else ""

    @property
    def often(self) -> str:
        """`in 5 of 6 calls, 12 times`; empty if it was not counted."""
        finding, calls, parts = self.finding, self.run.counts.get("calls"), []
        if finding.steps is not None and calls:
            parts.append(f"in {finding.steps} of {numbers.amount(calls, 'call')}")
        if finding.count is not None and finding.count != finding.steps:
            parts.append(numbers.amount(finding.count, "time"))
        return ", ".join(parts)

    @property
    def trigger(self) -> str:
        return ", ".join(filter(None, (self.seen_in, self.often)))

    @property
    def seen_in(self) -> str:
        """Where the finding comes from: the source, the run, or both."""
        more = ", not observed in a run" if self.finding.origin == "static" else ""
        return f"{ORIGINS[self.finding.origin]}{more}"

    @property
    def impact(self) -> str:
        """The effect of the finding, and its measured cost if there is one."""
        finding = self.finding
        text = IMPACT[finding.kind]
        if finding.kind == "hazard" and finding.suspects in IMPACT:
            reached = "a compiled call reaches this"
            if not finding.is_suspicion:
                reached = "the known bug of torch strikes"
            text = f"if {reached}: {IMPACT[finding.suspects]}"
        if finding.waited_s is not None:
            return f"{text}. They waited {numbers.seconds(finding.waited_s)}."
        if finding.cost_us is None:
            return f"{text}. Its cost was not measured."
        return f"{text}. Measured cost: {numbers.plain(finding.cost_us)} us per call."

    @property
    def links(self) -> list[str]:
        """Torch's own page if the run names one, then that of the rule."""
        page = self.finding.page or ""  # a damaged run may have anything there
        pages = [page] if page.startswith(_BREAK_SITES) else []
        pages += [self.rule.link] if self.rule and self.rule.link else []
        return list(dict.fromkeys(pages))

    def verification(self, *output: str) -> str:
        return commands.verification(self.finding, self.run, *output)

    @property
    def example(self) -> str:
        """Good code, as the rule has it; empty if the rule has words only."""
        text = self.rule.section("Good") if self.rule else ""
        try:
            ast.parse(text)
        except SyntaxError:
            return ""
        return text

    @property
    def lines(self) -> list[Line]:
        return excerpt(self.finding)

    # -- the remedy --------------------------------------------------------------------

    @property
    def diff(self) -> Diff:
        """The edit that was drafted for the finding; nothing has proved it."""
        return Diff(unified(self.changes), f"Draft for {self.finding.code}")

    @property
    def changes(self) -> tuple[Replacement, ...]:
        """Without their lines, as in a run without source, there is nothing to show."""
        return self.finding.remedy.replacements if self.finding.remedy else ()

    @property
    def draft(self) -> str:
        """`draft` if the fix is an edit that is shown; empty for advice in words."""
        if not self.changes or self.finding.remedy is None:
            return ""
        return "unsafe draft" if self.finding.remedy.tier == "unsafe" else "draft"

    @property
    def is_edited(self) -> bool:
        """Whether the diff shows the line of the finding."""
        at = self.finding.line or 0
        return any(
            each.file == self.finding.file
            and each.line <= at < each.line + len(each.old)
            for each in self.changes
        )

    # -- causes and effects ------------------------------------------------------------

    @property
    def explains(self) -> str:
        """`also explains 12 recompiles in 1 function (likely)`; empty for nothing."""
        found = [each.finding for each in self.effects]
        return f"also explains {explained(found)} ({certainty(found)})" if found else ""

    @property
    def causes(self) -> str:
        """`GB102 at model.py:40`: the causes of an effect; empty for a cause."""
        return _listed(self.tree.causes_of(self.finding))

    @property
    def follows(self) -> str:
        """The causes of an effect, how certain that is, and why."""
        if not self.causes:
            return ""
        sure = f" ({self.finding.certainty})" if self.finding.certainty else ""
        why = f": {self.finding.because}" if self.finding.because else ""
        return f"{self.causes}{sure}{why}"

    def briefly(self, effect: FindingBlock) -> str:
        """The message of an effect below its cause, and the other causes it needs."""
        found = effect.finding
        above = self.tree.causes_of(found)
        others = [f for f in above if f.identity != self.finding.identity]
        if not others or len(found.cause_of) == 1:
            return found.message
        return f"{found.message} (it also follows from {_listed(others)})"


def _listed(findings: Sequence[Finding]) -> str:
    return " and ".join(f"{f.code} at {run_words.place(f)}" for f in findings)


def blocks(run: Run) -> list[FindingBlock]:
    """All findings of a run in its order, but effects only below their causes."""
    tree, counts = CauseTree(run.findings), Counter[str]()
    by_finding: dict[int, FindingBlock] = {}
    for finding in run.findings:
        name = f"f-{finding.identity}"
        anchor = f"{name}-{counts[name]}" if counts[name] else name
        counts[name] += 1
        by_finding[id(finding)] = FindingBlock(finding, run, tree, anchor)
    for cause in tree.causes:
        effects = tuple(by_finding.pop(id(each)) for each in tree.effects(cause))
        if effects:
            block = by_finding[id(cause)]
            by_finding[id(cause)] = replace(block, effects=effects)
    return list(by_finding.values())


def everything(listed: Sequence[FindingBlock]) -> list[FindingBlock]:
    """Causes first, then what they explain."""
    return [*listed, *(effect for each in listed for effect in each.effects)]


def in_order(listed: Sequence[FindingBlock], run: Run) -> list[FindingBlock]:
    """Causes and effects in the order of the run."""
    order = {id(finding): number for number, finding in enumerate(run.findings)}
    return sorted(everything(listed), key=lambda each: order[id(each.finding)])


# -- causes ----------------------------------------------------------------------------


def totals(listed: Sequence[FindingBlock]) -> str:
    """`3 causes, 17 effects`; empty if no finding explains another."""
    count = sum(len(each.effects) for each in listed)
    if not count:
        return ""
    open_ones = [each.finding for each in listed if each.finding.status == "open"]
    causes = sum(not finding.is_suspicion for finding in open_ones)
    return f"{numbers.amount(causes, 'cause')}, {numbers.amount(count, 'effect')}"


def explained(effects: Sequence[Finding]) -> str:
    """`7 recompiles in 4 functions and 1 graph break`."""
    recompiles = [f for f in effects if f.kind == "recompile"]
    parts = []
    if recompiles:
        times = sum(f.count or 1 for f in recompiles)
        functions = len({(f.file, f.function) for f in recompiles})
        where = numbers.amount(functions, "function")
        parts.append(f"{numbers.amount(times, 'recompile')} in {where}")
    for kind in dict.fromkeys(f.kind for f in effects if f.kind != "recompile"):
        noun = _NOUNS.get(kind, kind.replace("_", " "))
        parts.append(numbers.amount(sum(f.kind == kind for f in effects), noun))
    *most, last = parts or ["nothing else"]
    return f"{', '.join(most)} and {last}" if most else last


def certainty(effects: Sequence[Finding]) -> str:
    """Whether the effects disappear with their cause; old runs have verified ones."""
    sure = sum(f.certainty == "verified" for f in effects)
    if not sure:
        return "likely"
    return "verified" if sure == len(effects) else f"{sure} verified, the rest likely"


def fix_first(run: Run, listed: Sequence[FindingBlock]) -> str:
    """The cause to fix first, and what that gains; empty if none explains another."""
    causes = [each for each in listed if each.finding.status == "open"]
    if not any(each.effects for each in causes):
        return ""
    first = causes[0]
    every = [first.finding, *(each.finding for each in first.effects)]
    text = f"Fix first: {first.finding.code} at {run_words.place(first.finding)}"
    gains = []
    costs = [f.cost_us for f in every if f.cost_us is not None]
    if costs:
        gains.append(f"costs {numbers.plain(sum(costs))} us/call")
    recompiles = sum(f.count or 1 for f in every if f.kind == "recompile")
    total = run.counts.get("recompiles")
    if recompiles and total and recompiles <= total:
        gains.append(f"is behind {recompiles} of {total} recompiles")
    gains += [first.explains] if first.explains else []
    return f"{text}. It {'; '.join(gains)}." if gains else f"{text}."


def about_drafts(run: Run, listed: Sequence[FindingBlock]) -> str:
    """What a draft is worth, and what proves it; empty without drafts."""
    if not any(each.draft for each in listed):
        return ""
    if not commands.can_prove(run):
        return "A draft is not proved: apply it, then check again."
    return f"A draft is not proved: `{commands.of(run, 'fix')}` proves it."


# -- code excerpts ---------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line of code in three parts: `before`, `marked` and `after`."""

    number: int
    before: str
    marked: str = ""
    after: str = ""
    here: bool = False

    @property
    def text(self) -> str:
        return f"{self.before}{self.marked}{self.after}"

    @property
    def part(self) -> str:
        """The code that the finding is about; empty if it is the whole line."""
        return self.marked.strip() if f"{self.before}{self.after}".strip() else ""

    @property
    def carets(self) -> str:
        """Signs below that code."""
        return " " * len(self.before) + "^" * len(self.marked) if self.part else ""


def excerpt(finding: Finding, before: int = _BEFORE, after: int = _AFTER) -> list[Line]:
    """The lines around a finding, with its own line and columns marked.

    Empty if the run holds no source for the finding.
    """
    at, texts, first = finding.line, finding.context, finding.context_from
    if at is None:
        return []
    if first is None or not first <= at < first + len(texts):
        texts, first = (finding.source or "",), at
    shown = {n: t for n, t in enumerate(texts, first) if -before <= n - at <= after}
    code = [text for text in shown.values() if text.strip()]
    if not code:
        return []
    indent = min(len(text) - len(text.lstrip()) for text in code)
    return [_line(finding, text, number, indent) for number, text in shown.items()]


def _line(finding: Finding, text: str, number: int, indent: int) -> Line:
    if number != finding.line:
        return Line(number, _short(text[indent:].rstrip()))
    start, end = (max(indent, column) for column in _marked(finding, text))
    code = text.rstrip()
    before, marked, after = code[indent:start], code[start:end], code[end:]
    return Line(number, _short(before), _short(marked), _short(after), here=True)


def _marked(finding: Finding, text: str) -> tuple[int, int]:
    """The recorded columns, else the code that the message quotes, else the line."""
    start, end = finding.column, finding.end_column
    if start and end and 0 < start < end <= len(text) + 1:
        return start - 1, end - 1
    for quoted in re.findall(r"`([^`]+)`", finding.message):
        match = re.search(rf"(?<!\w){re.escape(quoted)}(?!\w)", text)
        if match:
            return match.span()
    return len(text) - len(text.lstrip()), len(text.rstrip())


def _short(text: str) -> str:
    if len(text) <= _LONGEST_LINE:
        return text
    return text[:_LONGEST_LINE] + " ..."


def brief(text: str, limit: int) -> str:
    """The text, cut between words and never inside a code span."""
    if len(text) <= limit:
        return text
    short = text[:limit].rpartition(" ")[0] or text[:limit]
    if short.count("`") % 2:
        short = short.rpartition("`")[0].rstrip() or f"{short}`"
    return f"{short} ..."


def unified(changes: Sequence[Replacement]) -> str:
    """Edits as a unified diff without lines around them."""
    files = dict.fromkeys(each.file for each in changes)
    top, names = diff_names(files)
    lines = [unbroken(top.rstrip("\n"))] if top else []
    for file in files:
        name, added = unbroken(names[file]), 0
        lines += [f"--- a/{name}", f"+++ b/{name}"]
        own = (change for change in changes if change.file == file)
        for each in sorted(own, key=lambda change: change.at or change.line):
            at, old, new = each.at or each.line, len(each.old), len(each.new)
            spans = f"-{_span(at, old)} +{_span(at + added, new)}"
            lines += [f"@@ {spans} @@"]
            lines += [f"-{unbroken(text).rstrip()}" for text in each.old]
            lines += [f"+{unbroken(text).rstrip()}" for text in each.new]
            added += new - old
    return "".join(f"{text}\n" for text in lines)


def _span(first: int, count: int) -> str:
    """The lines of a hunk; without any, it comes after the line before."""
    return f"{first}" if count == 1 else f"{first if count else first - 1},{count}"


@dataclass(frozen=True)
class Findings(Block):
    """Findings in full; with `evidence` also on a terminal."""

    findings: tuple[FindingBlock, ...]
    evidence: bool = False
    empty: str = ""  # what a page says without any

    @property
    def is_empty(self) -> bool:
        return not self.findings and not self.empty


_STATUSES = ("open", "resolved", "intentional")


def by_severity(listed: Sequence[FindingBlock]) -> list[FindingBlock]:
    """Open findings first, then by severity, then by cost.

    The order of the run decides among equals: it begins with what explains most.
    """

    def rank(block: FindingBlock) -> tuple[int, int, float]:
        every = (block, *block.effects)
        costs = [each.finding.cost_us for each in every]
        cost = sum(each for each in costs if numbers.known(each))
        status = block.finding.status
        place = _STATUSES.index(status) if status in _STATUSES else len(_STATUSES)
        return place, SEVERITIES.index(block.severity), -cost

    return sorted(listed, key=rank)
