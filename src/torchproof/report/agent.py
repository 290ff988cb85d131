"""Renders a document for a coding agent: few tokens, one fact per line.

Each line begins with a label. Findings that one cause explains are listed below it,
since one edit removes them; each cause has the command that exits with code 0 once it
is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchproof.records import Finding, cells
from torchproof.report import commands
from torchproof.report.document import (
    Block,
    Card,
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
    Title,
    View,
    plain,
    seen_by,
)
from torchproof.report.finding_block import FindingBlock, Findings, certainty, excerpt
from torchproof.report.finding_block import explained as in_words

OUTPUT = ("-q", "--format", "agent")
_BEFORE, _AFTER = 2, 1  # lines of source around the line of a finding
_EVIDENCE = 2  # items per finding; the run has all of them
_LONGEST = 200  # characters of an item of evidence
_EFFECTS = 8  # effects per cause
_LINK = re.compile(r"GB\d+ https://\S+$")


def render(blocks: Iterable[Block]) -> str:
    text = "\n".join(_lines(blocks))
    return re.sub("\n{3,}", "\n\n", text).rstrip() + "\n"


def _lines(blocks: Iterable[Block]) -> Iterator[str]:
    for block in seen_by(View.AGENT, blocks):
        match block:
            case Title():
                yield f"torchproof {block.verb}: {block.target}"
            case Section() | Group() | Fold():
                yield from _lines(block.blocks)
            case Paragraph():
                yield f"{_label(block.label) or 'note'}: {plain(block.text)}"
            case Items():
                label = block.label or _label(block.title) or "note"
                lines = (" ".join(plain(text).split()) for text in block.lines)
                yield from (f"{label}: {text}" for text in lines)
            case Facts():
                yield from (f"{_label(n)}: {plain(text)}" for n, text in block.facts)
            case Steps():
                yield from (f"{_label(what)}: {each}" for what, each in block.steps)
            case Listing():
                yield f"{block.label}:"
                yield block.text.strip("\n")
            case Table():
                yield from _table(block)
            case Card():
                yield f"note: {', '.join((plain(block.text), *block.tags))}"
            case FixBlock():
                yield from _fix(block)
            case Findings():
                yield from _findings(block.findings)


def _label(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"


def _table(table: Table) -> Iterator[str]:
    """Cells between bars, without alignment."""
    yield f"table: {table.title}".rstrip(": ") if table.title else "table:"
    for row in (table.header, *table.rows):
        yield " | ".join(map(str, row))
    yield from (f"note: {text}" for text in table.lines)


def _fix(block: FixBlock) -> Iterator[str]:
    fix = block.fix
    place = cells.place(fix.file, fix.line) if fix.file else block.place
    yield ""
    codes = ", ".join(fix.codes)
    yield f"{block.number}. {codes} {fix.tier}, {fix.status}: {place}"
    yield f"what: {fix.title}"
    yield from [f"proved: {block.proof}"] if fix.receipt else ()
    yield from filter(None, (block.written, block.diff.text.rstrip("\n")))
    yield ""


def _findings(findings: Iterable[FindingBlock]) -> Iterator[str]:
    """Each cause once; a text that an earlier one has is only referred to."""
    first_uses: dict[str, int] = {}
    for number, block in enumerate(findings, 1):
        finding = block.finding
        yield ""
        yield _heading(number, block)
        yield f"what: {finding.message}"
        fix = f"fix ({block.draft})" if block.draft else "fix"
        labelled = [("why", f" {finding.cause}"), (fix, f" {finding.fix}")]
        if code := "\n".join(_source(block)):
            labelled.append(("source", f"\n{code}"))
        for label, text in labelled:
            first = first_uses.setdefault(text, number)
            yield f"{label}:{text if first == number else f' as in {first}'}"
        yield from filter(None, [block.diff.text.rstrip("\n")])
        yield from _evidence(block)
        yield from _effects(block)
        live = commands.kind(block.run.target) == "live"
        yield f"verify: {block.verification(*(() if live else OUTPUT))}"
    yield ""


def _heading(number: int, block: FindingBlock) -> str:
    finding = block.finding
    words = [finding.code, block.severity, finding.kind, block.path]
    words += [f"in {finding.function}"] if finding.function else []
    words += ["(library)"] if finding.owner == "library" else []
    if finding.is_suspicion:
        words.append("(read in the source, not observed)")
    words += [f"({block.ranks})"] if block.ranks else []
    return f"{number}. {' '.join(words)}"


def _source(block: FindingBlock) -> Iterator[str]:
    """The line of the finding with a few around it, and what it is about."""
    finding = block.finding
    lines = excerpt(finding, _BEFORE, _AFTER)
    for line in lines:
        yield f"{'>' if line.here else ' '}{line.number}| {line.text}".rstrip()
    part = next((line.part for line in lines if line.here), "")
    if part and finding.column and part not in finding.message:
        yield f"at: {part}"


def _evidence(block: FindingBlock) -> Iterator[str]:
    """What was measured, and what torch said that is not in the texts above.

    A link to a page about the break is for people, and so is the line of source that
    follows a guard.
    """
    finding = block.finding
    if block.cost:
        yield f"cost: {block.cost}"
    if finding.count is not None:
        yield f"count: {finding.count}"
    texts = [item.partition(" # ")[0].strip() for item in finding.evidence]
    new = [text for text in dict.fromkeys(texts) if not _is_known(text, finding)]
    yield from (f"evidence: {_cut(text)}" for text in new[:_EVIDENCE])


def _is_known(text: str, finding: Finding) -> bool:
    return bool(_LINK.match(text)) or text.partition(": ")[2] in finding.cause


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _effects(block: FindingBlock) -> Iterator[str]:
    if not block.effects:
        return
    found = [each.finding for each in block.effects]
    yield f"effects: {in_words(found)} ({certainty(found)})"
    for effect in block.effects[:_EFFECTS]:
        place = effect.place or "-"
        yield f"- {effect.finding.code} {place} {block.briefly(effect)}"
    if len(found) > _EFFECTS:
        yield f"- {len(found) - _EFFECTS} more"
