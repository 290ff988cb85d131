"""What the program has already: settings, arguments of torch.compile, marks of sizes.

A remedy is nothing that is in force, and may take a mark away.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from torchproof.checking.rules.rule import AnyGroup
from torchproof.checking.static import changes
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


def in_force(group: AnyGroup, each: Setting) -> bool:
    """Whether the program has a setting, or the argument of torch.compile.

    It was in force when code was compiled, or is written in the user's files. Of a
    setting that is a set of functions, the value is the name of one.
    """
    kind, _, name = each.name.partition(".")
    if kind == "compile":
        return group.compile_arguments.get(name) == str(each.value)
    full = f"torch._{kind}.config.{name}"
    value, text = group.facts.observation.settings.get(full), repr(each.value)
    found = value == each.value and full in group.facts.observation.settings
    if isinstance(each.value, str):
        text = each.value.rpartition(".")[2]
        found = isinstance(value, str) and f" {text}" in value
    return found or any(sets(file, full, text) for file in user_files(group))


def has_fullgraph(group: AnyGroup) -> bool:
    """Whether a torch.compile of the program has fullgraph=True.

    A trace does not record its arguments.
    """
    wrappers = group.facts.wrappers
    return not wrappers or any(w.arguments.get("fullgraph") == "True" for w in wrappers)


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
    edits = [_without(mark) for mark in marks]
    places = [cells.place(shown_briefly(m.file), m.line) for m in marks]
    title = f"remove the mark at {' and '.join(places)} (`{marks[0].code}`)"
    if not all(edits):
        return Remedy("none", why=title)
    kept = tuple(r for edit in edits if edit for r in edit.replacements)
    return Remedy("edit", replacements=kept, title=title)


def _without(mark: WrittenMark) -> Remedy | None:
    """The file without a statement that marks one size."""
    source = changes.source_of(mark.file)
    node = changes.statement_at(source, mark.line) if source else None
    if source is None or not isinstance(node, ast.Expr) or len(mark.dimensions) > 1:
        return None
    is_mark = ast.unparse(node.value) == mark.code
    return changes.removed("", source, node) if is_mark else None
