"""Renders a document as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchproof.records import document, line
from torchproof.report import markup
from torchproof.report.document import (
    Block,
    Card,
    Code,
    Diff,
    Facts,
    FixBlock,
    Fold,
    Group,
    Items,
    Listing,
    Paragraph,
    Section,
    Steps,
    Table,
    Text,
    Title,
    View,
    seen_by,
)
from torchproof.report.finding_block import FindingBlock, Findings, Line

_PERCENTILE = re.compile(r"((queue|serve) )?p\d+(\.\d+)?")


def render(blocks: Iterable[Block]) -> str:
    return "\n\n".join(filter(None, _blocks(blocks, 2))) + "\n"


def inline(text: Text) -> str:
    """Text inside another element."""
    if isinstance(text, Code):
        return markup.code(text)
    if isinstance(text, str):
        return markup.inline(text)
    return "".join(_part(part) for part in text).strip()


def _part(part: str) -> str:
    """A part of a text, with the spaces around it."""
    if isinstance(part, Code):
        return markup.code(part)
    text = part.strip()
    before, _, after = part.partition(text) if text else (part[:1], "", "")
    return f"{before[:1]}{markup.inline(text)}{after[:1]}"


def _prose(text: Text) -> str:
    """A paragraph, which must not begin as a list or a heading."""
    return markup.prose(text) if isinstance(text, str) else inline(text)


def _blocks(blocks: Iterable[Block], level: int) -> Iterator[str]:
    for block in seen_by(View.PAPER, blocks):
        if isinstance(block, Section | Fold) and block.title:
            yield f"{'#' * level} {inline(block.title)}"
        if isinstance(block, Items | Facts | Steps) and block.title:
            yield f"**{inline(block.title)}**"
        if isinstance(block, Section | Fold):
            yield from _blocks(block.blocks, level + 1)
        elif isinstance(block, Group):
            yield from _blocks(block.blocks, level)
        else:
            yield from _block(block, level)


def _block(block: Block, level: int) -> Iterator[str]:
    match block:
        case Title():
            yield f"# {block.text}: {markup.code(block.target)}"
        case Paragraph():
            yield _paragraph(block)
        case Items():
            mark = "[ ] " if block.style == "tasks" else ""
            yield markup.bullets(f"{mark}{inline(text)}" for text in block.lines)
        case Facts():
            yield markup.bullets(f"**{n}:** {inline(text)}" for n, text in block.facts)
        case Steps():
            lines = [f"# {line(what)}\n{command}" for what, command in block.steps]
            yield markup.fence("\n".join(lines), "bash")
        case Listing():
            yield f"{inline(block.caption)}:" if block.caption else ""
            yield markup.fence(document(block.text.strip("\n")), block.language)
        case Table():
            yield from _table(block, level)
        case Card():
            more = [*map(markup.code, block.tags), inline(block.words)]
            yield f"- {'; '.join(filter(None, [inline(block.text), *more]))}"
        case FixBlock():
            yield from _fix(block, level)
        case Findings():
            for finding in block.findings:
                yield from _finding(finding, level)


def _paragraph(block: Paragraph) -> str:
    if block.label:
        return f"**{block.label}:** {inline(block.text)}"
    if block.style in ("strong", "heading"):
        return f"**{inline(block.text)}**"
    return _prose(block.text)


def _table(block: Table, level: int) -> Iterator[str]:
    header = [
        name
        if _PERCENTILE.fullmatch(name)
        else markup.inline(f"{name[:1].upper()}{name[1:]}")
        for name in block.header
    ]
    rows = [
        tuple(
            inline(cell if isinstance(cell, str | tuple) else str(cell)) for cell in row
        )
        for row in block.rows
    ]
    yield f"{'#' * level} {markup.inline(block.title)}" if block.title else ""
    yield markup.table(header, rows)
    yield markup.bullets(map(markup.inline, block.lines))


# -- fixes and findings ----------------------------------------------------------------


def _fix(block: FixBlock, level: int) -> Iterator[str]:
    fix = block.fix
    yield f"{'#' * level} {block.number}. {markup.inline(fix.title)}"
    facts = {
        "Codes": ", ".join(fix.codes),
        "Tier": fix.tier,
        "Place": markup.code(block.place) if fix.file else "",
        "In": markup.code(fix.function) if fix.function else "",
        "Proved": markup.inline(block.proof),
        "Status": markup.inline(block.written or fix.status),
    }
    yield markup.bullets(f"**{name}:** {text}" for name, text in facts.items() if text)
    yield _diff(block.diff)


def _diff(block: Diff) -> str:
    return markup.fence(document(block.text), "diff") if block.text else ""


def _finding(block: FindingBlock, level: int) -> Iterator[str]:
    """Heading, location, impact, code, fix, cause and verification command."""
    finding, code = block.finding, markup.inline(block.finding.code)
    mark = f"[{finding.severity.upper()}] {block.category}"
    yield f"{'#' * level} {mark}: {markup.inline(block.title)}"
    if block.title != line(finding.message):
        yield f"{markup.prose(line(finding.message).rstrip('.'))}."
    facts = {
        "Location": _location(block),
        "Trigger": f"{block.trigger}{_since(block)}",
        "Impact": block.impact,
    }
    yield markup.bullets(f"**{name}:** {text}" for name, text in facts.items())
    if lines := block.lines:
        yield "**Current code:**"
        yield markup.fence("\n".join(_code(lines)), "text")
    yield from _cure(block)
    general = block.rule.section("Why") if block.rule else ""
    yield f"**Why:** {_sentence(finding.cause)} {markup.inline(general)}".rstrip()
    yield f"**Verification:** exits with code 0 when no {code} remains."
    yield markup.fence(block.verification(), "bash")
    pages = [*block.links, markup.code(f"torchproof rule {finding.code}")]
    yield f"**Reference:** {', '.join(pages)}"
    if block.follows:
        yield f"**Follows from:** {markup.inline(block.follows)}."
    if block.effects:
        yield f"**{block.explains[:1].upper()}{block.explains[1:]}:**"
        yield markup.bullets(inline(each.in_one_line) for each in block.effects)


def _location(block: FindingBlock) -> str:
    where = markup.code(block.place) if block.place else "no specific line"
    where += (
        f", {markup.code(block.finding.function)}" if block.finding.function else ""
    )
    return f"{where} (library code)" if block.finding.owner == "library" else where


def _since(block: FindingBlock) -> str:
    """Whether the earlier run has the finding too, if its record says so."""
    before = block.run.baseline
    if before is None or before.identities is None:
        return ""
    had = "also" if block.finding.identity in before.identities else "not"
    return f"; {had} in run {markup.code(before.id or '')}"


def _code(lines: list[Line]) -> Iterator[str]:
    width = len(str(lines[-1].number))
    for each in lines:
        yield f"{'>' if each.here else ' '} {each.number:>{width}} | {each.text}"
        if each.carets:
            yield f"  {'':>{width}} | {each.carets}"


def _cure(block: FindingBlock) -> Iterator[str]:
    """The fix for this finding, and the example of the rule."""
    label = f"Fix ({block.draft})" if block.draft else "Fix"
    text = f"**{label}:** {_sentence(block.finding.fix)}"
    if block.draft or block.rule is None:
        yield text
        yield _diff(block.diff)
    elif example := block.example:
        yield f"{text} Example from the rule:"
        yield markup.fence(example, "python")
    else:  # prose, where the fix is to remove something
        yield f"{text} In general: {_sentence(block.rule.section('Good'))}"
    yield markup.prose(block.rule.section("Fix safety")) if block.rule else ""


def _sentence(text: str) -> str:
    return f"{markup.inline(line(text).rstrip('.'))}."
