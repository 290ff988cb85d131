"""Renders one finding as a Markdown section of the optimisation report."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchproof.records import CATEGORIES, Finding, RuleText, Run, line
from torchproof.report import commands, markup, numbers
from torchproof.report.run_words import place

# Where torch explains each of its graph breaks, by number.
_BREAK_SITES = (
    "https://meta-pytorch.github.io/compile-graph-break-site/",
    "https://meta-pytorch.org/compile-graph-break-site/",
)
_TITLE = 150  # characters; a longer message is repeated below the heading
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


def title(finding: Finding) -> str:
    """The message, cut to the length of a heading, never inside a code span."""
    text = line(finding.message)
    if len(text) <= _TITLE:
        return text
    cut = text[:_TITLE].rpartition(" ")[0] or text[:_TITLE]
    if cut.count("`") % 2:
        cut = cut.rpartition("`")[0].rstrip() or f"{cut}`"
    return f"{cut} ..."


def entry(finding: Finding, run: Run) -> str:
    """Heading, location, impact, code, fix, cause and verification command."""
    rule = run.rules.get(finding.code)
    mark = finding.severity.upper()
    blocks = [
        f"### [{mark}] {_category(finding)}: {markup.inline(title(finding))}",
        _full(finding),
        markup.bullets(f"**{name}:** {text}" for name, text in _facts(finding, run)),
        _code(finding),
        _fix(finding, rule),
        _why(finding, rule),
        f"**Verification:** exits with code 0 when no {markup.inline(finding.code)} "
        "remains.\n\n"
        f"{markup.fence(commands.verification(finding, run), 'bash')}",
        f"**Reference:** {', '.join(_references(finding, rule))}",
    ]
    return "\n\n".join(filter(None, blocks))


def _category(finding: Finding) -> str:
    """The category of the summary; a hazard also names the category it suspects."""
    suspected = CATEGORIES.get(finding.suspects or "")
    if finding.kind != "hazard" or suspected is None:
        return finding.category
    return f"{finding.category} (suspected: {suspected})"


def _full(finding: Finding) -> str:
    """The whole message if the heading cuts it."""
    whole = line(finding.message)
    return "" if title(finding) == whole else f"{markup.prose(whole.rstrip('.'))}."


def _facts(finding: Finding, run: Run) -> Iterator[tuple[str, str]]:
    where = markup.code(place(finding)) if finding.file else "no specific line"
    if finding.function:
        where += f", {markup.code(finding.function)}"
    if finding.owner == "library":
        where += " (library code)"
    yield "Location", where
    yield "Trigger", _trigger(finding, run)
    yield "Impact", impact(finding)


def _trigger(finding: Finding, run: Run) -> str:
    text = {
        "static": "found in the source",
        "dynamic": "observed in the run",
        "both": "found in the source and observed in the run",
    }[finding.origin]
    if finding.origin == "static" and finding.kind == "hazard":
        text += ", not observed in a run"
    calls = run.counts.get("calls")
    if finding.steps is not None and calls:
        text += f", in {finding.steps} of {numbers.amount(calls, 'call')}"
    if finding.count is not None and finding.count != finding.steps:
        text += f", {numbers.amount(finding.count, 'time')}"
    return f"{text}{_since(finding, run)}"


def _since(finding: Finding, run: Run) -> str:
    """Whether the earlier run has the finding too, if its record says so."""
    if run.baseline is None or run.baseline.identities is None:
        return ""
    before = markup.code(run.baseline.id or "")
    had = finding.identity in run.baseline.identities
    return f"; also in run {before}" if had else f"; not in run {before}"


def impact(finding: Finding) -> str:
    """The effect of the finding, and its measured cost if there is one."""
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


def _code(finding: Finding) -> str:
    """The lines around the finding, with its own line marked."""
    lines = finding.context or ((finding.source,) if finding.source else ())
    if not lines or not any(text.strip() for text in lines):
        return ""
    first = finding.line if not finding.context else finding.context_from
    shift = min(len(x) - len(x.lstrip()) for x in lines if x.strip())
    width = len(str((first or 0) + len(lines)))
    code_lines = []
    for offset, text in enumerate(lines):
        number = None if first is None else first + offset
        is_marked = number is not None and number == finding.line
        label = "" if number is None else str(number)
        code_lines.append(
            f"{'>' if is_marked else ' '} {label:>{width}} | {text[shift:]}"
        )
        if is_marked and (carets := _carets(finding, shift)):
            code_lines.append(f"  {'':>{width}} | {carets}")
    block = markup.fence("\n".join(code_lines), "text")
    return f"**Current code:**\n\n{block}"


def _carets(finding: Finding, shift: int) -> str:
    start, end = finding.column, finding.end_column
    if not start or not end or end <= start or start - 1 < shift or end > 500:
        return ""
    return " " * (start - 1 - shift) + "^" * (end - start)


def _fix(finding: Finding, rule: RuleText | None) -> str:
    """The fix for this finding, and the example of the rule."""
    text = f"**Fix:** {_sentence(finding.fix)}"
    if rule is None:
        return text
    good, safety = rule.section("Good"), markup.prose(rule.section("Fix safety"))
    if not _is_code(good):  # prose, where the fix is to remove something
        return f"{text} In general: {_sentence(good)}\n\n{safety}"
    block = markup.fence(good, "python")
    return f"{text} Example from the rule:\n\n{block}\n\n{safety}"


def _is_code(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _why(finding: Finding, rule: RuleText | None) -> str:
    general = f" {markup.inline(rule.section('Why'))}" if rule else ""
    return f"**Why:** {_sentence(finding.cause)}{general}"


def _sentence(text: str) -> str:
    return f"{markup.inline(line(text).rstrip('.'))}."


def reference(finding: Finding, rule: RuleText | None) -> str | None:
    """Torch's page for this graph break if the run names it, else the rule's page."""
    for item in finding.evidence:
        match = re.match(r"GB\d+ (https://\S+)$", item)
        if match and match[1].startswith(_BREAK_SITES):
            return match[1]
    return rule.link if rule else None


def _references(finding: Finding, rule: RuleText | None) -> Iterator[str]:
    page = reference(finding, rule)
    if page:
        yield page
    if rule and rule.link and rule.link != page:
        yield rule.link
    yield markup.code(f"torchproof rule {finding.code}")
