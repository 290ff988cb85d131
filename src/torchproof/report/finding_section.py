"""One finding as a section of the optimisation report."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from torchproof.checking import Rule, by_code, torch_pages
from torchproof.records import CATEGORIES, Finding, Run, UserError, line
from torchproof.report import commands, markup, numbers

_HOME = Path(__file__).parents[2].as_posix() + "/"  # what holds the package
_TITLE = 150  # letters; a longer message stands below the heading as well
# What each kind does to the program, apart from what it costs.
IMPACT = {
    "graph_break": "the graph ends here, and Python runs before the next one begins",
    "skipped_frame": "Dynamo gives up on the function, and all of it runs eagerly",
    "no_op": "no compiled code runs here, so that compiling gains nothing",
    "compile_error": "the compilation fails here",
    "host_sync": "the host waits for the device",
    "recompile": "the function is compiled again while its caller waits",
    "recompile_limit": "torch gives up, and the function runs eagerly from then on",
    "specialization": "other sizes are compiled again, or refused",
    "cudagraph_skip": "this is not captured: Python launches each of its kernels",
    "cudagraph_lifetime": "memory in use is overwritten: wrong values, or an error",
    "cudagraph_rerecord": "a CUDA graph is recorded again, which takes time and memory",
    "numerics": "compiled answers are not those of eager",
    "stale_state": "compiled code does not see a change that eager sees",
    "slowdown": "compiling does not pay for itself",
    "compile_time": "compiling takes longer than it has to",
    "memory": "it needs more device memory than eager",
    "config": "a setting or a call does not do what it is there for",
    "hazard": "it may go wrong when it is compiled",
}


def title(finding: Finding) -> str:
    """The message, as far as it fits a heading; code is not cut in two."""
    text = line(finding.message)
    if len(text) <= _TITLE:
        return text
    cut = text[:_TITLE].rpartition(" ")[0] or text[:_TITLE]
    if cut.count("`") % 2:
        cut = cut.rpartition("`")[0].rstrip() or f"{cut}`"
    return f"{cut} ..."


def place(finding: Finding) -> str:
    """`file.py:42`, without the folders above an installed package."""
    if finding.file is None:
        return numbers.UNKNOWN
    file = finding.file.removeprefix(_HOME).rpartition("/site-packages/")[2]
    return file if finding.line is None else f"{file}:{finding.line}"


def entry(finding: Finding, run: Run) -> str:
    """Heading, place, what it does and costs, code, fix, why, how to verify."""
    rule = _rule(finding.code)
    mark = finding.severity.upper()
    blocks = [
        f"### [{mark}] {_category(finding)}: {markup.inline(title(finding))}",
        _full(finding),
        markup.bullets(f"**{name}:** {text}" for name, text in _facts(finding, run)),
        _code(finding),
        _fix(finding, rule),
        _why(finding, rule),
        f"**Verification:** ends with exit code 0 once no {finding.code} is left.\n\n"
        f"{markup.fence(commands.verification(finding, run), 'bash')}",
        f"**Reference:** {', '.join(_references(finding, rule))}",
    ]
    return "\n\n".join(filter(None, blocks))


def _category(finding: Finding) -> str:
    """That of the summary; for a suspicion, beside the one it would be of."""
    suspected = CATEGORIES.get(finding.suspects or "")
    if finding.kind != "hazard" or suspected is None:
        return finding.category
    return f"{finding.category} (suspected: {suspected})"


def _rule(code: str) -> Rule | None:
    try:
        return by_code(code)
    except UserError:  # the rule of another version
        return None


def _full(finding: Finding) -> str:
    """The whole message, where the heading has only its beginning."""
    whole = line(finding.message)
    return "" if title(finding) == whole else f"{markup.prose(whole.rstrip('.'))}."


def _facts(finding: Finding, run: Run) -> Iterator[tuple[str, str]]:
    where = markup.code(place(finding)) if finding.file else "no line of its own"
    if finding.function:
        where += f", {markup.code(finding.function)}"
    if finding.owner == "library":
        where += " (library code)"
    yield "Location", where
    yield "Trigger", _trigger(finding, run)
    yield "Impact", impact(finding)


def _trigger(finding: Finding, run: Run) -> str:
    text = {
        "static": "read in the source",
        "dynamic": "seen in the run",
        "both": "read in the source and seen in the run",
    }[finding.origin]
    if finding.origin == "static" and finding.kind == "hazard":
        text += ", not shown by a run"
    calls = run.counts.get("calls")
    if finding.steps is not None and calls:
        text += f", in {finding.steps} of {numbers.amount(calls, 'call')}"
    if finding.count is not None and finding.count != finding.steps:
        text += f", {numbers.amount(finding.count, 'time')}"
    return f"{text}{_since(finding, run)}"


def _since(finding: Finding, run: Run) -> str:
    """Whether the earlier run had it too, where that is on record."""
    known = (run.baseline or {}).get("identities")
    if known is None or run.baseline is None:
        return ""
    before = markup.code(run.baseline.get("id", ""))
    had = finding.identity in known
    return f"; run {before} has it too" if had else f"; run {before} does not have it"


def impact(finding: Finding) -> str:
    """What it does, and what it costs if that was measured."""
    text = IMPACT[finding.kind]
    if finding.kind == "hazard" and finding.suspects in IMPACT:
        text = f"if this is reached while compiling: {IMPACT[finding.suspects]}"
    if finding.cost_us is None:
        return f"{text}. What it costs was not measured."
    return f"{text}. It costs {numbers.plain(finding.cost_us)} us a call, measured."


def _code(finding: Finding) -> str:
    """The lines around it, the one it is about marked."""
    lines = finding.context or ((finding.source,) if finding.source else ())
    if not lines or not any(text.strip() for text in lines):
        return ""
    first = finding.line if not finding.context else finding.context_from
    shift = min(len(x) - len(x.lstrip()) for x in lines if x.strip())
    width = len(str((first or 0) + len(lines)))
    shown = []
    for offset, text in enumerate(lines):
        number = None if first is None else first + offset
        here = number is not None and number == finding.line
        label = "" if number is None else str(number)
        shown.append(f"{'>' if here else ' '} {label:>{width}} | {text[shift:]}")
        if here and (carets := _carets(finding, shift)):
            shown.append(f"  {'':>{width}} | {carets}")
    block = markup.fence("\n".join(shown), "text")
    return f"**Current code:**\n\n{block}"


def _carets(finding: Finding, shift: int) -> str:
    start, end = finding.column, finding.end_column
    if not start or not end or end <= start or start - 1 < shift or end > 500:
        return ""
    return " " * (start - 1 - shift) + "^" * (end - start)


def _fix(finding: Finding, rule: Rule | None) -> str:
    """What to do here, and the rule's example of it."""
    text = f"**Fix:** {_sentence(finding.fix)}"
    if rule is None:
        return text
    good, safety = rule.section("Good"), markup.prose(rule.section("Fix safety"))
    if not _is_code(good):  # in words, where the cure is to leave something out
        return f"{text} In the rule's words: {_sentence(good)}\n\n{safety}"
    block = markup.fence(good, "python")
    return f"{text} As code, in the rule's example:\n\n{block}\n\n{safety}"


def _is_code(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _why(finding: Finding, rule: Rule | None) -> str:
    general = f" {markup.inline(rule.section('Why'))}" if rule else ""
    return f"**Why:** {_sentence(finding.cause)}{general}"


def _sentence(text: str) -> str:
    return f"{markup.inline(line(text).rstrip('.'))}."


def reference(finding: Finding) -> str | None:
    """Torch's page of this very break if the run names it, else that of the rule."""
    for item in finding.evidence:
        found = re.match(r"GB\d+ (https://\S+)$", item)
        if found and found[1].startswith(torch_pages.BREAK_SITES):
            return found[1]
    rule = _rule(finding.code)
    return rule.page() if rule else None


def _references(finding: Finding, rule: Rule | None) -> Iterator[str]:
    own = reference(finding)
    if own:
        yield own
    if rule:
        if rule.page() != own:
            yield rule.page()
        yield markup.code(f"torchproof rule {finding.code}")
    else:
        yield f"this torchproof has no rule {markup.code(finding.code)}"
