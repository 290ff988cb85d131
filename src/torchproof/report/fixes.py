"""Renders a run of `fix`: each fix as a diff with its receipt, then what is left."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.records import Fix, Run, document
from torchproof.report import fix_words, markup, run_words, text_layout
from torchproof.report.heading import heading
from torchproof.report.text_layout import INDENT, wrap

_PLAIN, _BOLD = "\x1b[0m", "\x1b[1m"
_DIFF = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}
_TIERS = {"safe": "\x1b[32m", "unsafe": "\x1b[33m", "suggested": "\x1b[36m"}


def render(
    run: Run, *, colour: bool = False, width: int = 80, verbose: bool = False
) -> str:
    """The counts before and after, the fixes, what is left, and what to run next."""
    width = max(width, 40)
    blocks = [[*_header(run, width)]]
    before: Fix | None = None
    for fix in fix_words.helpful(run):
        blocks.append([*_fix(fix, before, width, colour)])
        before = fix
    blocks += [[*_pasted(run)], [*_left(run, width)]]
    blocks += [[*_rejected(run, width)] if verbose else [], [*_footer(run, width)]]
    return text_layout.joined(blocks)


def _header(run: Run, width: int) -> Iterator[str]:
    facts = run.environment
    device = facts.get("gpu") or facts.get("device")
    text = f"fix of {run.target}"
    text += f" ({facts['size']})" if facts.get("size") else ""
    text += f" on {device}" if device else ""
    text += f", torch {facts['torch']}" if facts.get("torch") else ""
    text += ", training" if run.options.get("train") else ""
    yield from wrap(text, width)
    counts = [f"{name} {old} -> {new}" for name, old, new in fix_words.changes(run)]
    if counts:
        yield from wrap(", ".join(counts), width)
    if why := run_words.incomplete(run):
        yield from wrap(f"Incomplete: {why}. Results so far follow.", width)


def _fix(fix: Fix, before: Fix | None, width: int, colour: bool) -> Iterator[str]:
    tier = f"{_TIERS[fix.tier]}{fix.tier}{_PLAIN}" if colour else fix.tier
    yield f"{fix_words.place(fix)}  {', '.join(fix.codes)} {tier}"
    yield from wrap(fix.title, width, INDENT)
    if fix.diff:
        yield ""
        lines = fix.diff.rstrip("\n").split("\n")
        yield from (_diff_line(line, colour) for line in lines)
        yield ""
    for text in (fix_words.proved(fix, before), fix_words.written(fix)):
        yield from wrap(text, width, INDENT, INDENT * 2)


def _diff_line(line: str, colour: bool) -> str:
    if not colour:
        return line
    if line.startswith(("---", "+++")):
        return f"{_BOLD}{line}{_PLAIN}"
    start = _DIFF.get(line[:1])
    return f"{start}{line}{_PLAIN}" if start else line


def _pasted(run: Run) -> Iterator[str]:
    if code := fix_words.code(run):
        yield "Settings, to paste before the model is compiled:"
        yield from text_layout.code(code)[:-1]


def _left(run: Run, width: int) -> Iterator[str]:
    still = fix_words.left(run)
    if still:
        yield "Not fixed:"
    for each in still:
        finding = each.finding
        new = " (hidden before)" if each.is_new else ""
        text = f"{run_words.place(finding)}  {finding.code}{new}  {finding.message}"
        yield from wrap(text, width, INDENT, INDENT * 2)
        yield from wrap(f"why: {each.why}", width, INDENT * 2, INDENT * 2)


def _rejected(run: Run, width: int) -> Iterator[str]:
    edits = fix_words.rejected(run)
    if edits:
        yield "Rejected edits:"
    for fix in edits:
        text = f"{fix_words.place(fix)}  {', '.join(fix.codes)}  {fix.title}: {fix.why}"
        yield from wrap(text, width, INDENT, INDENT * 2)


def _footer(run: Run, width: int) -> Iterator[str]:
    yield from wrap(fix_words.summary(run), width)
    yield from wrap(fix_words.note(run), width)
    yield from wrap(f"{fix_words.effort(run)}. Saved as run {run.id}.", width)
    for purpose, command in fix_words.next_steps(run):
        yield f"{purpose}: {command}"


# -- Markdown --------------------------------------------------------------------------


def markdown(run: Run) -> Iterator[str]:
    yield from heading(run, "torch.compile fixes")
    yield f"**{markup.inline(fix_words.summary(run))}**"
    rows = [tuple(map(markup.inline, row)) for row in fix_words.changes(run)]
    if rows:
        yield markup.table(("", "Before", "With all fixes"), rows)
    before: Fix | None = None
    for number, fix in enumerate(fix_words.helpful(run), 1):
        yield from _fix_markdown(f"{number}. {fix.title}", fix, before)
        before = fix
    if code := fix_words.code(run):
        yield "## Settings\n\nTo paste before the model is compiled:"
        yield markup.fence(code, "python")
    if still := fix_words.left(run):
        cells = [
            (
                markup.code(run_words.place(each.finding)),
                each.finding.code + (" (hidden before)" if each.is_new else ""),
                markup.inline(each.finding.message),
                markup.inline(each.why),
            )
            for each in still
        ]
        yield "## Not fixed"
        yield markup.table(("Place", "Code", "Finding", "Why it is not fixed"), cells)
    if edits := fix_words.rejected(run):
        lines = [f"{', '.join(f.codes)}, {f.title}: {f.why}" for f in edits]
        yield f"## Rejected edits\n\n{markup.bullets(map(markup.inline, lines))}"
    if note := fix_words.note(run):
        yield markup.prose(note)
    yield f"{markup.inline(fix_words.effort(run))}."
    for purpose, command in fix_words.next_steps(run):
        yield f"{markup.inline(purpose)}:\n\n{markup.fence(command, 'bash')}"


def _fix_markdown(title: str, fix: Fix, before: Fix | None) -> Iterator[str]:
    yield f"## {markup.inline(title)}"
    facts = [
        f"**Codes:** {', '.join(fix.codes)}",
        f"**Tier:** {fix.tier}",
        f"**Place:** {markup.code(fix_words.place(fix))}" if fix.file else "",
        f"**In:** {markup.code(fix.function)}" if fix.function else "",
        f"**Proved:** {markup.inline(fix_words.proof(fix, before))}",
        f"**Status:** {markup.inline(fix_words.written(fix) or fix.status)}",
    ]
    yield markup.bullets(filter(None, facts))
    if fix.diff:
        yield markup.fence(document(fix.diff), "diff")
