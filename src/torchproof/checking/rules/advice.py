"""Assembles the advice of a finding from pieces, each with its precondition.

A piece that does not apply to this source, or to what is in force in this run, is left
out. If no piece applies, the advice says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchproof.checking.rules.rule import AnyGroup, sentence
from torchproof.checking.static.line_facts import WrittenMark, marks_in, sets
from torchproof.records import (
    CompileEvent,
    Frame,
    Setting,
    cells,
    is_frame_of,
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


def has_fullgraph(group: AnyGroup) -> bool:
    """Whether a torch.compile of the program has fullgraph=True.

    A trace does not record its arguments.
    """
    wrappers = group.facts.wrappers
    return not wrappers or any(w.arguments.get("fullgraph") == "True" for w in wrappers)


def setting(group: AnyGroup, each: Setting, note: str = "") -> Piece:
    """Sets a setting of the compiler, unless the program has it."""
    kind, _, name = each.name.partition(".")
    if kind == "compile":
        given = group.facts.compile_arguments.get(name)
        return Piece(f"{each.code}{note}", given != str(each.value))
    full = f"torch._{kind}.config.{name}"
    verb = "" if isinstance(each.value, str) else "set "  # `SET.add(function)`
    return Piece(f"{verb}{each.code}{note}", not has_setting(group, full, each.value))


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


def removed(*marks: WrittenMark) -> str:
    """The edit that removes marks; empty without any."""
    places = [
        f"{cells.place(shown_briefly(mark.file), mark.line)} (`{mark.code}`)"
        for mark in marks
    ]
    return f"remove the mark at {' and at '.join(places)}" if places else ""


# -- pieces that several rules use -----------------------------------------------------


def moved_out(group: AnyGroup, what: str) -> tuple[Piece, ...]:
    """Ways to take code out of the compiled function."""
    line, at_entry = group.line, _is_in_entry(group)
    return (
        Piece(
            f"compute {what} before the compiled call and pass the result in",
            at_entry and line.from_arguments and not line.is_unused,
        ),
        Piece(
            f"return what {what} needs, and do it after the compiled call",
            at_entry and line.is_returned and not line.from_arguments,
        ),
        Piece(
            f"put {what} under `if not torch.compiler.is_compiling():`, if compiled"
            " calls may go without it",
            line.is_unused,
        ),
    )


def _is_in_entry(group: AnyGroup) -> bool:
    """Whether the code is in the function that the program calls, compiled.

    What a function inside gets as an argument may be computed by the one that calls it.
    """
    frame = group.frame
    if frame is None or group.place.owner != "user":
        return False
    wrappers = group.facts.wrappers
    codes = [c for w in wrappers for c in (w.function, *w.around)]
    if not wrappers:  # source that has not run
        return group.line.is_entry
    return any(is_frame_of(frame, code) for code in codes)


def disabled(what: str) -> str:
    """What is left if nothing removes a break."""
    return (
        f"put {what} in a function marked @torch.compiler.disable: the break stays,"
        " as an intended one"
    )
