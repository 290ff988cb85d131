"""What an advice did to a program: the verdict on two runs of `check`, and outputs."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from torchproof.records import Finding, Run

LOUD = ("high", "medium")
COUNTED = ("graph_breaks", "recompiles", "skipped_frames")
# They are about a function; the line is where its code begins.
_OF_A_FUNCTION = {"recompile", "recompile_limit", "specialization"}


class Verdict(StrEnum):
    """What an advice did."""

    WORKS = "works"
    WORSE = "gone, but worse"
    NO_EFFECT = "no effect"
    WRONG = "wrong outputs"
    FAILS = "fails"
    NONE = "no edit known"
    UPGRADE = "upgrade"


@dataclass(frozen=True)
class Lines:
    """Where the lines of a text were in the text that it was made of."""

    before: str
    after: str
    _ranges: dict[int, range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        old, new = self.before.splitlines(), self.after.splitlines()
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            for j in range(j1, j2):
                i = i1 + j - j1
                same = range(i + 1, i + 2)
                # A new line stands between two lines that were there.
                changed = range(i1 + 1, i2 + 1) if i1 < i2 else range(i1, i1 + 2)
                self._ranges[j + 1] = same if tag == "equal" else changed

    def were_at(self, line: int | None) -> range:
        return self._ranges.get(line or 0, range(0))

    def is_new(self, line: int | None) -> bool:
        old, new = self.before.splitlines(), self.after.splitlines()
        at = self.were_at(line)
        return len(at) != 1 or old[at[0] - 1] != new[(line or 1) - 1]


@dataclass(frozen=True)
class Checked:
    """A run, and the lines that Dynamo traced, by the names of their files."""

    run: Run
    traced: frozenset[tuple[str, int]]

    @property
    def loud(self) -> list[Finding]:
        """What a user is told to act on."""
        return [f for f in self.run.findings if is_loud(f)]

    @property
    def counted(self) -> list[Finding]:
        """Also the breaks that the program declares intentional."""
        return [f for f in self.run.findings if is_loud(f) or f.status == "intentional"]

    def count(self, name: str) -> int:
        return int(self.run.counts.get(name) or 0)


def is_loud(finding: Finding) -> bool:
    return finding.status == "open" and finding.severity in LOUD


@dataclass(frozen=True)
class Difference:
    """Between what a program returned in eager mode, and its copy compiled."""

    why: str
    raises: bool  # the copy, where the program did not


@dataclass(frozen=True)
class Trial:
    """A program before a remedy and after it."""

    before: Checked
    after: Checked
    lines: Lines
    difference: Difference | None = None

    def verdict(self, finding: Finding) -> tuple[Verdict, str, list[str]]:
        """What the remedy of a finding did, why that is so, and what it uncovered."""
        if self.difference:
            found = Verdict.FAILS if self.difference.raises else Verdict.WRONG
            return found, self.difference.why, []
        if error := self.after.run.error:
            return Verdict.FAILS, error, []
        for each in self.after.counted:
            if self.is_same(finding, each):
                return Verdict.NO_EFFECT, _place(each), []
        known, after = self.before.counted, self.after.counted
        new = [e for e in after if not any(self.is_same(one, e) for one in known)]
        uncovered = [each for each in new if self._was_hidden(each, finding)]
        caused = [each for each in new if each not in uncovered]
        rises = list(self._rises())
        found, why = Verdict.WORKS, "; ".join([*map(_place, caused), *rises])
        if why:
            is_one = not rises and len(caused) == 1
            is_swap = is_one and self._is_other_name(finding, caused[0])
            found = Verdict.NO_EFFECT if is_swap else Verdict.WORSE
        return found, why, list(map(_place, uncovered))

    def is_same(self, one: Finding, other: Finding) -> bool:
        """Whether the second finding, of the changed program, is the first one."""
        if one.code != other.code:
            return False
        if one.kind in _OF_A_FUNCTION or other.line is None:
            return (one.key, one.function) == (other.key, other.function)
        if one.owner != "user":
            return one.line == other.line
        return one.line in self.lines.were_at(other.line)

    def _was_hidden(self, new: Finding, gone: Finding) -> bool:
        """Whether Dynamo could not show it before, and the remedy has not written it.

        A function that is skipped is never compiled again, and of the guards that
        fail, a recompile shows the first.
        """
        if new.kind in _OF_A_FUNCTION:
            recompiles = self._rise("recompiles")
            is_other = gone.kind not in _OF_A_FUNCTION
            fewer = recompiles < 0 or (is_other and recompiles == 0)
            return fewer or self._rise("skipped_frames") < 0
        if new.owner != "user":
            return (_name(new.file), new.line or 0) not in self.before.traced
        if self.lines.is_new(new.line):
            return False
        at = self.lines.were_at(new.line)[0]
        return (_name(new.file), at) not in self.before.traced

    def _is_other_name(self, gone: Finding, new: Finding) -> bool:
        """Whether the same goes wrong as before, for another reason."""
        if gone.category != new.category or new.status != "open":
            return False
        if new.kind not in _OF_A_FUNCTION and self.lines.is_new(new.line):
            return False
        return LOUD.index(new.severity) >= LOUD.index(gone.severity)

    def _rise(self, count: str) -> int:
        return self.after.count(count) - self.before.count(count)

    def _rises(self) -> Iterable[str]:
        """What is more than before in the same code."""
        for name in () if self._uncovers() else COUNTED:
            if self._rise(name) > 0:
                change = f"{self.before.count(name)} -> {self.after.count(name)}"
                yield f"{name.replace('_', ' ')} {change}"
        if self.before.count("graphs") and not self.after.count("graphs"):
            yield "nothing is compiled any more"

    def _uncovers(self) -> bool:
        """Whether Dynamo traces lines of the program that it did not trace before."""
        if self._rise("skipped_frames") < 0:
            return True
        program = _name(self.before.run.target.rpartition(":")[0])
        return any(
            (program, self.lines.were_at(line)[0]) not in self.before.traced
            for name, line in self.after.traced
            if name == program and not self.lines.is_new(line)
        )


def _place(finding: Finding) -> str:
    return f"{finding.code} at line {finding.line}"


def _name(file: str | None) -> str:
    return os.path.basename(file or "")
