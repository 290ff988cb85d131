"""The document of a `fix`: each fix with its diff and receipt, and what is left."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.records import Fix, Run, cells
from torchproof.report import commands, fix_words, run_sections, run_words, verdicts
from torchproof.report.agent import OUTPUT
from torchproof.report.document import (
    Block,
    Code,
    Group,
    Items,
    Listing,
    Paragraph,
    Section,
    Steps,
    Table,
    Text,
    Tile,
    Verdict,
    View,
)
from torchproof.report.opening import first_lines, opening

_MOST = 200  # lines of a list
_DO_NOT = "write a rejected edit, or --unsafe fixes without asking the user"


def document(run: Run, *, verbose: bool = False) -> Iterator[Block]:
    changes, terminal = fix_words.changes(run), View.TERMINAL
    counts = ", ".join(f"{name} {old} -> {new}" for name, old, new in changes)
    result, note = fix_words.summary(run), fix_words.note(run)
    yield from opening(run, "torch.compile fixes", [*first_lines(run), counts])
    tiles = [
        Tile(name[:1].upper() + name[1:], after, f"{before} before the fixes")
        for name, before, after in changes
    ]
    yield verdicts.with_tiles(run, _verdict(run), tiles)
    yield Paragraph(counts, "With all fixes", views=View.AGENT)
    yield Paragraph(result, "Result", views=View.AGENT)
    yield Paragraph(result, style="strong", views=View.PAPER)
    yield Table("", ("", "before", "with all fixes"), tuple(changes), views=View.PAPER)
    yield _fixes(run)
    yield _left(run)
    yield from _for_agents(run)
    rejected = tuple(map(_rejected, fix_words.rejected(run)[:_MOST]))
    views = View.ALL if verbose else ~terminal
    yield Items(rejected, "Rejected edits", "rejected", "folded", views=views)
    said = f"{fix_words.effort(run)}."
    yield Paragraph(note, views=View.PAPER)
    yield Paragraph(said, views=View.PAPER)
    yield from run_sections.about(run, "Findings before the fixes")
    last = (result, note, f"{said} Saved as run {run.id}.")
    steps = Steps(tuple(fix_words.next_steps(run)))
    yield Group((*map(Paragraph, last), steps), views=terminal)
    yield Paragraph(note, "Note", views=View.AGENT)
    yield Steps(steps.steps, views=View.PAPER | View.AGENT)
    yield Paragraph(_DO_NOT, "Do not", views=View.AGENT)


def _fixes(run: Run) -> Section:
    fixes = fix_words.fix_blocks(run)
    blocks: list[Block] = [*fixes]
    code = fix_words.code(run)
    caption = "Settings, to paste before the model is compiled"
    none = "" if fixes else "No fix was verified."
    blocks += [
        Paragraph(none, views=View.PAGE),
        Listing(code, "python", caption, "settings", "settings-lines"),
        Steps(tuple(fix_words.next_steps(run)), "Next commands", views=View.PAGE),
    ]
    note = str(len(fixes)) if fixes else ""
    return Section("Fixes", tuple(blocks), "fixes", note, "Fixes")


def _left(run: Run) -> Section:
    """The findings that are not fixed, and why."""
    left = fix_words.left(run)
    lines: list[Text] = []
    rows = []
    for each in left:
        finding, new = each.finding, " (hidden before)" if each.is_new else ""
        place = Code(run_words.place(finding))
        text = f"  {finding.code}{new}  {finding.message}; why: {each.why}"
        lines.append((place, text))
        rows.append((place, f"{finding.code}{new}", finding.message, each.why))
    header = ("place", "code", "finding", "why it is not fixed")
    blocks = (
        Items(tuple(lines), "Not fixed", views=View.TERMINAL),
        Items(tuple(lines[:_MOST]), views=View.PAGE),
        Table("", header, tuple(rows), views=View.PAPER),
    )
    views = ~View.AGENT
    return Section(
        "Not fixed", blocks, "left", str(len(left)), "Not fixed", views=views
    )


def _for_agents(run: Run) -> Iterator[Block]:
    for each in fix_words.left(run):
        f = each.finding
        place = cells.place(f.file, f.line) if f.file else "-"
        column = f":{f.column}" if f.column and not cells.name_in(f.file or "") else ""
        lines = (f"{f.code} {place}{column} {f.message}",)
        verify = commands.verification(f, run, *OUTPUT)
        facts = (("- why", each.why), ("- fix", f.fix), ("- verify", verify))
        yield Items(lines, label="left", views=View.AGENT)
        yield from (Paragraph(text, name, views=View.AGENT) for name, text in facts)


def _rejected(fix: Fix) -> Text:
    place = Code(fix_words.place(fix))
    return place, f"  {', '.join(fix.codes)}  {fix.title}: {fix.why}"


def _verdict(run: Run) -> Verdict:
    fixes, still = fix_words.helpful(run), fix_words.left(run)
    text = fix_words.summary(run)
    more = tuple(filter(None, (f"{fix_words.effort(run)}.", fix_words.note(run))))
    if not fixes:
        word = "no fix verified" if still else "nothing to fix"
        return Verdict("open" if still else "good", word, text, more)
    waiting = any(fix.status == "verified" for fix in fixes)
    word = "fixes verified" if waiting else "fixes applied"
    return Verdict("open" if waiting or still else "good", word, text, more)
