"""Drafts the edit of each finding without running anything, for `check` to show.

The rewrites are those that `fix` tries, and it alone proves them. Where the program has
a line for a setting, the draft is that line.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchproof.checking import rules
from torchproof.fixing import rewrites
from torchproof.fixing.edits import Edit, applied, replacements
from torchproof.fixing.proof import Located, Proof
from torchproof.fixing.proposals import Sources, last_proposals, proposals
from torchproof.fixing.rewrites import compiler_settings
from torchproof.records import (
    SEVERITIES,
    CompileEvent,
    Event,
    Finding,
    Frame,
    Observation,
    Overlay,
    Remedy,
    Replacement,
    WrapperEvent,
    cells,
    definition,
    is_own,
    is_resumed,
    qualified_name,
    shown,
    shown_briefly,
    source_line,
    user_frame,
)

_FILES, _FINDINGS = 50, 200  # of one check: files that are parsed, findings drafted
_PROSE = 160  # characters of a title
_UNCHANGED = Proof(Overlay(), Observation((), {}))


def drafted(
    findings: Sequence[Finding], matched: Iterable[rules.Matched]
) -> list[Finding]:
    """The findings, each with the edit that its rule knows for it, the worst first.

    Where there are too many, the rest keep what their rules know.
    """
    drafts = _Drafts({each.finding.identity: each for each in matched})
    order = sorted(
        (each for each in findings if each.status == "open"),
        key=lambda f: (SEVERITIES.index(f.severity), f.file or ""),
    )
    remedies = {id(finding): drafts.remedy(finding) for finding in order}
    return [_with_remedy(each, remedies.get(id(each))) for each in findings]


def _with_remedy(finding: Finding, remedy: Remedy | None) -> Finding:
    return replace(finding, remedy=remedy, fix=remedy.text) if remedy else finding


@dataclass
class _Drafts:
    """Drafts for the findings of one check; `matched` has the events of each."""

    matched: Mapping[str, rules.Matched]
    sources: Sources = field(default_factory=Sources)
    asked: int = 0  # findings so far

    def remedy(self, finding: Finding) -> Remedy | None:
        """The remedy with its edit; None if none can be drafted."""
        self.asked += 1
        is_late = self.asked > _FINDINGS or len(self.sources.originals) > _FILES
        known = finding.remedy
        try:
            if known is not None and known.replacements:
                return self._known(known, is_late=is_late)
            return None if is_late else self._edit(finding) or self._line(finding)
        except Exception:  # whatever the program is: a check gives its findings
            return _without_edit(known) if known is not None else None

    def _known(self, remedy: Remedy, *, is_late: bool) -> Remedy:
        """An edit that a rule has; unless it is late, without lines that stay."""
        changes: list[Replacement] = []
        for name in dict.fromkeys(each.file for each in remedy.replacements):
            file = os.path.abspath(name)
            own = [each for each in remedy.replacements if each.file == name]
            text = self.sources.original(file)
            new = applied(text, own)  # fails if the file has changed
            changes += own if is_late else replacements(file, text, new)
        return replace(remedy, replacements=_saved(changes))

    # -- rewrites ----------------------------------------------------------------------

    def _edit(self, finding: Finding) -> Remedy | None:
        """The first rewrite of the user's own file that applies, else of a library."""
        has_line = finding.remedy and finding.remedy.kind in ("setting", "mark")
        best: Edit | None = None
        for edit in self._edits(finding):
            if has_line and not (edit.tier == "safe" and _is_own(edit)):
                continue
            if best is not None and edit.tier != best.tier:
                break
            if best is None or _is_own(edit):
                best = edit
            if _is_own(best):
                break
        return _remedy(best) if best else None

    def _edits(self, finding: Finding) -> Iterator[Edit]:
        """Those that need no run; safe ones come first.

        What takes work out of the graph is for findings without another remedy.
        """
        matched = self.matched.get(finding.identity)
        frames = _last_of_each(matched.rule.stack(matched.group) if matched else ())
        is_current = all(map(_is_current, frames))
        if not is_current:
            return
        entries = matched.group.facts.entries if matched else ()
        located = Located(finding, frames, entries=entries)
        found = proposals(located, _UNCHANGED, self.sources)
        remedy, later = finding.remedy, list[Edit]()
        if remedy is not None and remedy.kind in ("none", "upgrade"):
            last = last_proposals(located, _UNCHANGED, self.sources)
            found = itertools.chain(found, last)
        for each in found:
            if isinstance(each, Edit) and each.replacements and not each.needs_run:
                if each.tier == "safe":
                    yield each
                else:
                    later.append(each)
        yield from later

    # -- lines for settings ------------------------------------------------------------

    def _line(self, finding: Finding) -> Remedy | None:
        """The remedy with the line that sets it; None if the program has no place."""
        matched, remedy = self.matched.get(finding.identity), finding.remedy
        if matched is None or remedy is None or remedy.kind != "setting":
            return None
        facts, event = matched.group.facts, matched.group.first
        place = _place_of_compile(facts.wrappers, event, remedy, finding.file)
        if place is None:
            return None
        file = os.path.abspath(place.file)
        text = self.sources.original(file)
        site = rewrites.Site(finding, rewrites.parsed(file, text), place.line)
        new = compiler_settings.with_setting(site, remedy.settings[0])
        return replace(remedy, replacements=_saved(replacements(file, text, new)))


def _without_edit(remedy: Remedy) -> Remedy:
    """The remedy in words."""
    if remedy.kind in ("edit", "patch"):
        return Remedy("none", why=remedy.title)
    return replace(remedy, replacements=())


def _last_of_each(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The innermost frame of each function.

    After a graph break, torch's stack may begin with an earlier line of the function
    that is resumed.
    """
    last = {_code(frame): frame for frame in frames}
    return tuple(each for each in frames if each in last.values())


def _is_current(frame: Frame) -> bool:
    """Whether the file still has the line, which may come from an older trace."""
    line = source_line(frame.file, frame.line).strip()
    return not frame.code or not line or frame.code == line


def _place_of_compile(
    wrappers: Sequence[WrapperEvent], event: Event, remedy: Remedy, file: str | None
) -> Frame | None:
    """The user's line that compiles what an event is about; None if it is unknown.

    Of several that may, it is one in the finding's own file.
    """
    own = [w for w in wrappers if not w.by_torchproof and w.calls != 0]
    is_argument = any(s.name.startswith("compile.") for s in remedy.settings)
    functions = [event.function]
    if isinstance(event, CompileEvent) and not is_argument:
        functions.append(event.entry)  # of several calls in one line, the first
    by_function = ([w for w in own if _compiles(w, each)] for each in functions)
    about = next(filter(None, by_function), [])
    places = [user_frame(each.frames) for each in about or own]
    found = list(dict.fromkeys(each for each in places if each is not None))
    if is_argument and len({(each.file, each.line) for each in found}) != 1:
        return None
    near = [each for each in found if shown(each.file) == file]
    certain = found if about or len(found) == 1 else []
    return next(iter(near or certain), None)


def _compiles(wrapper: WrapperEvent, function: Frame | None) -> bool:
    """Whether a function, or the rest of it after a graph break, is compiled there."""
    own = [frame for frame in (*wrapper.around, wrapper.function) if frame is not None]
    if function is None or not is_resumed(function.function):
        return function in own
    return _code(function) in [_code(definition(frame)) for frame in own]


def _code(frame: Frame) -> tuple[str, str]:
    """The function that a line is in."""
    return frame.file, qualified_name(frame)


def _is_own(edit: Edit) -> bool:
    files = [change.file for change in edit.replacements]
    return all(cells.name_in(file) is not None or is_own(file) for file in files)


def _remedy(edit: Edit) -> Remedy:
    changed = [each for each in edit.replacements if each.old] or edit.replacements
    place = cells.place(shown_briefly(changed[0].file), changed[0].line)
    own = _is_own(edit)
    patch = "" if own else ": `torchproof fix TARGET --patch DIR` writes it"
    titles = [f"{edit.title}, at {place}{patch}", f"{edit.title}{patch}"]
    return Remedy(
        "edit" if own else "patch",
        _saved(edit.replacements),
        title=next((t for t in titles if len(t) <= _PROSE), edit.title),
        tier=edit.tier,
    )


def _saved(changes: Iterable[Replacement]) -> tuple[Replacement, ...]:
    """The replacements as a run has them: its paths, and the lines of these files."""
    return tuple(replace(c, file=shown(c.file), at=c.line) for c in changes)
