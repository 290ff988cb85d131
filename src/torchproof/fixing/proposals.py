"""Drafts edits for findings, from what their rules say may cure them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchproof.checking import by_code
from torchproof.fixing import rewrites
from torchproof.fixing.edits import Edit, replacements
from torchproof.fixing.observed_calls import ObservedCall
from torchproof.fixing.proof import Located, Proof
from torchproof.fixing.source_text import read_source
from torchproof.records import (
    COMPREHENSIONS,
    Finding,
    Frame,
    Overlay,
    Setting,
    UserError,
    cells,
    definition,
    is_frame_of,
    one_line,
    qualified_name,
    whose,
)

# Frames above the innermost one where an edit may help: a condition is often computed
# in a small function and used by its caller. Work that leaves the graph may be a whole
# function of several levels.
_FRAMES, _LAST_FRAMES = 3, 6
Observe = Callable[[Overlay], Sequence[ObservedCall]]


@dataclass(frozen=True)
class Refusal:
    """A rewrite that does not apply to a finding, with the reason.

    `names_code`: the reason is some code of the program, which a user can change.
    """

    finding: Finding
    rewrite: str
    why: str
    names_code: bool = False


class Sources:
    """The texts of files: as they are on disk, read once, and with edits."""

    def __init__(self, observe: Observe = lambda overlay: ()) -> None:
        self._observe = observe
        self._observed: dict[tuple[str, str], Sequence[ObservedCall]] = {}
        self.originals: dict[str, str] = {}

    def text(self, file: str, proof: Proof) -> str:
        """The text that a proof ran; raises `UserError` if there is none."""
        return proof.overlay.texts.get(file) or self.original(file)

    def original(self, file: str) -> str:
        if file not in self.originals:
            self.originals[file] = read_source(file).text
        return self.originals[file]

    def observed(self, file: str, text: str, proof: Proof) -> Sequence[ObservedCall]:
        """What probes in a text record, with the other texts as the proof ran them."""
        if (file, text) not in self._observed:
            texts = {**proof.overlay.texts, file: text}
            found = self._observe(replace(proof.overlay, texts=texts))
            self._observed[file, text] = found
        return self._observed[file, text]


def proposals(
    each: Located, proof: Proof, sources: Sources
) -> Iterator[Edit | Refusal]:
    """The edits that may cure a finding, the most promising first, safe ones first."""
    later: list[Edit | Refusal] = []
    for proposal in _in_order_of_rule(each, proof, sources):
        if isinstance(proposal, Edit) and proposal.tier != "safe":
            later.append(proposal)
        else:
            yield proposal
    yield from later


def last_proposals(
    each: Located, proof: Proof, sources: Sources
) -> Iterator[Edit | Refusal]:
    """Edits that take work out of the graph, for a finding that no other edit cures."""
    for name in by_code(each.finding.code).last_rewrites:
        yield from _rewritten(name, each, proof, sources)


def easing_proposals(each: Located, proof: Proof) -> Iterator[Edit]:
    """Settings that make a finding cheaper where compiled code calls its function."""
    rule = by_code(each.finding.code)
    known = {setting.name for setting in proof.overlay.settings}
    if len(_readable(each)) < 2:
        return
    for setting in rule.easing_settings:
        if setting.name not in known:
            yield replace(_with_setting(setting, each.finding), eases=True)


def _in_order_of_rule(
    each: Located, proof: Proof, sources: Sources
) -> Iterator[Edit | Refusal]:
    rule = by_code(each.finding.code)
    known = set(proof.overlay.settings)
    for name in rule.rewrites:
        yield from _rewritten(name, each, proof, sources)
    remedy = each.finding.remedy
    if remedy and remedy.replacements and (remedy.marks or not rule.rewrites):
        for change in remedy.replacements:
            sources.original(change.file)  # what the edit is applied to
        changes = remedy.replacements
        yield Edit(remedy.title, remedy.tier, each.finding, replacements=changes)
    marks = tuple(m for m in each.finding.marks if m not in proof.overlay.marks)
    if marks:
        title = "mark " + ", ".join(
            f"size {m.dimension} of {m.argument}" for m in marks
        )
        yield Edit(title, "safe", each.finding, marks=marks)
    for setting in rule.settings:
        if setting not in known:
            yield _with_setting(setting, each.finding)


def _with_setting(setting: Setting, finding: Finding) -> Edit:
    return Edit(f"set {setting.lines[-1]}", "safe", finding, settings=(setting,))


def _rewritten(
    name: str, each: Located, proof: Proof, sources: Sources
) -> Iterator[Edit | Refusal]:
    finding = each.finding
    places = _places(each)
    if not places:
        where = f"`{finding.function}`" if finding.function else "`exec`"
        why = f"the source of {where} is not in a file"
        yield Refusal(finding, name, why, names_code=True)
    for index, frame in _tried(name, each, places):
        file = os.path.abspath(frame.file)
        try:
            text = sources.text(file, proof)
            site = rewrites.Site(
                finding,
                rewrites.parsed(file, text),
                line=frame.line,
                columns=_columns(frame, text),
                inner=places[index - 1].function if index else None,
                is_entry=any(_is_in(frame, code) for code in each.entries),
                probe=partial(sources.observed, file, proof=proof),
            )
            draft = rewrites.named(name)(site)
        except rewrites.Refused as refused:
            names_code = refused.names_code
            yield Refusal(finding, name, str(refused), names_code=names_code)
            continue
        except UserError as error:
            yield Refusal(finding, name, str(error))
            continue
        except Exception as error:  # code of any shape must not end the search
            why = one_line(f"the rewrite failed: {type(error).__name__}: {error}", 200)
            yield Refusal(finding, name, why)
            continue
        changes = replacements(file, text, draft.text)
        yield Edit(
            draft.title,
            draft.tier,
            finding,
            replacements=changes,
            needs_run=draft.needs_run,
        )


def _is_in(frame: Frame, code: Frame) -> bool:
    """Whether a line is of a function, or of a comprehension in it."""
    if frame.function not in COMPREHENSIONS:
        return is_frame_of(frame, code)
    names = qualified_name(frame), qualified_name(definition(code))
    return frame.file == code.file and names[0] == names[1]


def _tried(
    name: str, each: Located, places: Sequence[Frame]
) -> list[tuple[int, Frame]]:
    """The places that a rewrite gets, each with its number, the nearest first."""
    listed = list(enumerate(places))
    is_last = name in by_code(each.finding.code).last_rewrites
    return listed[: _LAST_FRAMES if is_last else _FRAMES]


def _readable(each: Located) -> list[Frame]:
    """The user's and the libraries' frames of a finding, innermost first."""
    return [
        frame
        for frame in reversed(each.frames)
        if whose(frame.file) in {"user", "library"} and cells.is_source(frame.file)
    ]


def _places(each: Located) -> list[Frame]:
    """Where an edit may help, the nearest place first."""
    frames = _readable(each)
    file = each.finding.file
    if not frames and file and each.finding.line and cells.is_source(file):
        frames = [_frame_of(each.finding)]
    return frames


def _frame_of(finding: Finding) -> Frame:
    """The place of a finding without a stack, with the columns it marks."""
    assert finding.file is not None and finding.line is not None
    code, columns = finding.source or "", None
    if finding.column and finding.end_column:
        indent = 1 + len(code) - len(code.lstrip())  # its columns count from 1
        columns = finding.column - indent, finding.end_column - indent
    function = finding.function or ""
    return Frame(finding.file, finding.line, function, code.strip(), columns)


def _columns(frame: Frame, text: str) -> tuple[int, int] | None:
    """The columns in the file; those of a frame do not count the indentation."""
    lines = text.splitlines()
    if frame.columns is None or not 1 <= frame.line <= len(lines):
        return None
    line = lines[frame.line - 1]
    indent = len(line) - len(line.lstrip())
    return indent + frame.columns[0], indent + frame.columns[1]
