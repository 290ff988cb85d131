"""Edits as data: what they replace, how they are applied to texts, and as a diff."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchproof.records import (
    Finding,
    Fix,
    Mark,
    Overlay,
    Replacement,
    Setting,
    Tier,
    diff_names,
)


class Misfit(Exception):
    """The lines that an edit replaces are not in the text."""


class NeedsUnsafe(str):
    """Why an edit is rejected that `--unsafe` allows."""

    def __new__(cls, what: str) -> NeedsUnsafe:
        return super().__new__(cls, f"{what}: --unsafe allows it")


@dataclass(frozen=True)
class Edit:
    """One proposed change, for a finding; `also` are others that it may cure."""

    title: str
    tier: Tier
    finding: Finding
    also: tuple[Finding, ...] = ()
    replacements: tuple[Replacement, ...] = ()
    settings: tuple[Setting, ...] = ()
    marks: tuple[Mark, ...] = ()
    eases: bool = False  # the finding may stay, if less goes wrong around it
    needs_run: bool = False  # only a run shows whether it helps with the values there

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.finding, *self.also

    @property
    def key(self) -> object:
        """Equal for edits that change the same."""
        return self.replacements, self.settings, self.marks


def overlap(one: Edit, other: Edit) -> bool:
    """Whether two edits of the same text change the same lines."""
    return any(
        a.file == b.file and _meet(_lines(a), _lines(b))
        for a in one.replacements
        for b in other.replacements
    )


def _lines(change: Replacement) -> tuple[int, int] | None:
    """The first and the last line that are replaced; None if there are none."""
    return (change.line, change.line + len(change.old) - 1) if change.old else None


def _meet(one: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
    if one is None or other is None:
        return False
    return one[0] <= other[1] and other[0] <= one[1]


def replacements(file: str, before: str, after: str) -> tuple[Replacement, ...]:
    """What changed between two texts of a file, as blocks of lines."""
    old, new = before.splitlines(True), after.splitlines(True)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return tuple(
        Replacement(
            file,
            i1 + 1,
            tuple(old[i1:i2]),
            tuple(new[j1:j2]),
            below=() if i1 < i2 else _above(old, i1),
        )
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    )


def _above(lines: Sequence[str], index: int) -> tuple[str, ...]:
    """The lines above a place, up to one that is not blank."""
    first = index - 1
    while first > 0 and not lines[first].strip():
        first -= 1
    return tuple(lines[max(first, 0) : index])


def located(change: Replacement, original: str, current: str) -> Replacement:
    """The block with its line in the original text, which became the current one."""
    old, new = original.splitlines(True), current.splitlines(True)
    start = _place(new, change)
    stop = start + max(len(change.old), 1)
    matcher = difflib.SequenceMatcher(None, new, old, autojunk=False)
    for block in matcher.get_matching_blocks():
        if block.a <= start and stop <= block.a + block.size:
            return replace(change, at=block.b + start - block.a + 1)
    return change


def applied(text: str, changes: Iterable[Replacement]) -> str:
    """The text with each block replaced, at the place nearest to where it was."""
    lines = text.splitlines(True)
    for change in sorted(changes, key=lambda c: c.line, reverse=True):
        at = _place(lines, change)
        new = change.new
        if not change.old:  # another edit may have added the same import
            new = tuple(n for n in new if not (_is_import(n) and n in lines))
        lines[at : at + len(change.old)] = new
    return "".join(lines)


def _is_import(line: str) -> bool:
    return line.startswith(("import ", "from "))


def _place(lines: Sequence[str], change: Replacement) -> int:
    wanted = change.line - 1
    text, offset = change.old or change.below, 0 if change.old else len(change.below)
    places = [
        i + offset
        for i in range(len(lines) - len(text) + 1)
        if tuple(lines[i : i + len(text)]) == text
    ]
    if not text:
        return min(wanted, len(lines))
    if not places and not change.old:
        raise Misfit(f"{change.file} has no line {text[-1].strip()!r} to insert below")
    if not places:
        raise Misfit(f"{change.file} has no line {change.old[0].strip()!r} to replace")
    return min(places, key=lambda i: abs(i - wanted))


def overlay_of(edits: Iterable[Edit | Fix], originals: Mapping[str, str]) -> Overlay:
    """All edits together, each applied to the result of those before it."""
    texts: dict[str, str] = {}
    settings: dict[str, Setting] = {}
    marks: dict[Mark, None] = {}
    for edit in edits:
        by_file: dict[str, list[Replacement]] = {}
        for change in edit.replacements:
            by_file.setdefault(change.file, []).append(change)
        for file, changes in by_file.items():
            texts[file] = applied(texts.get(file, originals[file]), changes)
        settings |= {f"{s.name} {s.value}": s for s in edit.settings}
        marks |= dict.fromkeys(edit.marks)
    return Overlay(texts, tuple(settings.values()), tuple(marks))


def unified(
    changed: Mapping[str, str], before: Mapping[str, str], files: Iterable[str] = ()
) -> str:
    """A unified diff for `patch -p1`; `files` are those of other diffs of the run."""
    top, names = diff_names({*changed, *files})
    diffs = (
        difflib.unified_diff(
            before[file].splitlines(True),
            text.splitlines(True),
            f"a/{names[file]}",
            f"b/{names[file]}",
        )
        for file, text in changed.items()
    )
    text = "".join(line for diff in diffs for line in diff)
    return text and top + text
