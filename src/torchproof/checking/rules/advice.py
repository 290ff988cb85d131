"""Assembles the advice of a finding from pieces, each with its precondition.

A piece that does not apply to this source, or to what is in force in this run, is left
out. If no piece applies, the advice says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchproof.checking.rules.line_edits import without
from torchproof.checking.rules.rule import AnyGroup, sentence
from torchproof.checking.static.line_facts import WrittenMark, marks_in, sets
from torchproof.records import (
    CompileEvent,
    Frame,
    Remedy,
    Setting,
    cells,
    shown_briefly,
    whose,
)

NO_EDIT = "no edit of this code is known that removes it"


@dataclass(frozen=True)
class Piece:
    """One way to remove a finding; `when` is its precondition."""

    text: str
    when: bool = True


def assembled(*pieces: Piece, otherwise: str = NO_EDIT) -> str:
    """The pieces that apply, as one text."""
    texts = [piece.text for piece in pieces if piece.when and piece.text]
    texts = [texts[0], *map(sentence, texts[1:])] if texts else []
    return "; or ".join(dict.fromkeys(texts)) or otherwise


# -- what the program has already ------------------------------------------------------


def has_setting(group: AnyGroup, name: str, value: object) -> bool:
    """Whether a setting has this value, in force when the code was compiled or written.

    Of a setting that is a set of functions, `value` is the name of one.
    """
    in_force = group.facts.observation.settings.get(name)
    if isinstance(value, str):
        short = value.rpartition(".")[2]
        in_set = isinstance(in_force, str) and f" {short}" in in_force
        return in_set or any(sets(file, name, short) for file in user_files(group))
    if name in group.facts.observation.settings and in_force == value:
        return True
    return any(sets(file, name, repr(value)) for file in user_files(group))


def in_force(group: AnyGroup, each: Setting) -> bool:
    """Whether the program has a setting, or the argument of torch.compile."""
    kind, _, name = each.name.partition(".")
    if kind == "compile":
        return group.facts.compile_arguments.get(name) == str(each.value)
    return has_setting(group, f"torch._{kind}.config.{name}", each.value)


def has_fullgraph(group: AnyGroup) -> bool:
    """Whether a torch.compile of the program has fullgraph=True.

    A trace does not record its arguments.
    """
    wrappers = group.facts.wrappers
    return not wrappers or any(w.arguments.get("fullgraph") == "True" for w in wrappers)


def setting(group: AnyGroup, each: Setting, note: str = "") -> Piece:
    """Sets a setting of the compiler, unless the program has it."""
    return Piece(each.code + note, not in_force(group, each))


def user_files(group: AnyGroup) -> Iterator[str]:
    """The user's files around a finding: its place, its callers, what compiled it."""
    wrappers = group.facts.wrappers
    frames: list[Frame | None] = [group.frame, group.first.function]
    frames += [*group.first.frames, *group.first.callers]
    frames += [frame for each in wrappers for frame in each.frames]
    files = [frame.file for frame in frames if frame is not None]
    if isinstance(group.first, CompileEvent) and group.first.entry_call:
        files.append(group.first.entry_call.file)
    yield from dict.fromkeys(file for file in files if whose(file) == "user")


def written_marks(group: AnyGroup) -> list[WrittenMark]:
    """The marks of sizes in the user's files."""
    return [mark for file in user_files(group) for mark in marks_in(file)]


def removed(marks: Sequence[WrittenMark]) -> Remedy | None:
    """The edit that removes the user's marks of a size that cannot be dynamic."""
    if not marks:
        return None
    edits = [without(mark) for mark in marks]
    places = [cells.place(shown_briefly(m.file), m.line) for m in marks]
    title = f"remove the mark at {' and '.join(places)} (`{marks[0].code}`)"
    if not all(edits):
        return Remedy("none", why=title)
    kept = tuple(edit for edit in edits if edit is not None)
    return Remedy("edit", replacements=kept, title=title)
