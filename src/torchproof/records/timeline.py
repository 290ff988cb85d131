"""What the processes of a run did and when: spans and moments, on one clock.

Each process appends lines of JSON to a file of its own in one folder, so that a killed
process loses nothing. All times are nanoseconds of CLOCK_MONOTONIC, which the processes
of a machine share.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from torchproof.records.blame import shown_briefly

VARIABLE = "TORCHPROOF_TIMELINE"  # the folder, for child processes
PURPOSES_VARIABLE = "TORCHPROOF_TIMELINE_FOR"
TRACE, LIVE = "trace", "live"  # a file in the end, a display of what goes on
_SUFFIX = ".timeline"
_MOST_BYTES = 1 << 30  # of one file; the rest is not read


@dataclass
class Span:
    """Something that lasts; `end_ns` is None while it does."""

    track: str
    name: str
    category: str
    begin_ns: int
    end_ns: int | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """Something that happens and does not last."""

    track: str
    name: str
    category: str
    at_ns: int
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stack:
    """Where a thread is since `since_ns`, as a sample found it."""

    phase: str | None  # of compiling
    place: str | None  # the innermost line of the user's code: `train.py:18`
    function: str
    since_ns: int


@dataclass
class ProcessTimeline:
    """One process, as far as its file tells."""

    pid: int
    name: str = ""
    begin_ns: int = 0
    last_ns: int = 0  # the last time that the process wrote
    spans: list[Span] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # what torch gives no hook for
    runs_commands: bool = False
    samples: bool = False  # whether it looks at its stacks, and writes that it lives
    exits: bool = False  # the program has ended, the interpreter has not
    stacks: dict[str, Stack] = field(default_factory=dict)  # by track
    _open: dict[int, Span] = field(default_factory=dict)

    @property
    def unfinished(self) -> list[Span]:
        """The spans that have not ended, outermost first."""
        return list(self._open.values())

    def add(self, line: dict[str, Any]) -> None:
        """Takes one line of the file; raises if it is not as `Recorder` writes it."""
        at = int(line["ns"])
        match line["do"]:
            case "process":
                self.name, self.begin_ns = str(line["name"]), at
                self.runs_commands = bool(line.get("runs_commands"))
            case "begin":
                span = _span(line, at)
                self.spans.append(span)
                self._open[int(line["id"])] = span
            case "describe":
                span = self._open[int(line["id"])]
                span.name = str(line["name"])
                span.details.update(_details(line))
            case "end":
                self._open.pop(int(line["id"])).end_ns = at
            case "span":
                span = _span(line, int(line["begin"]))
                span.end_ns = int(line["end"])
                self.spans.append(span)
            case "moment":
                words = str(line["track"]), str(line["name"]), str(line["category"])
                self.moments.append(Moment(*words, at, _details(line)))
            case "missing":
                self.missing.append(str(line["message"]))
            case "sampling":
                self.samples = bool(line["on"])
            case "exiting":
                self.samples, self.exits = False, True
            case "stack":
                stack = Stack(line["phase"], _place(line), str(line["function"]), at)
                self.stacks[str(line["track"])] = stack
        self.last_ns = max(self.last_ns, at)


Process = TypeVar("Process", bound=ProcessTimeline)


def _span(line: dict[str, Any], begin_ns: int) -> Span:
    words = str(line["track"]), str(line["name"]), str(line["category"])
    return Span(*words, begin_ns, details=_details(line))


def _details(line: dict[str, Any]) -> dict[str, Any]:
    details = dict(line["details"])
    return details | {"place": _place(details)} if "place" in details else details


def _place(words: dict[str, Any]) -> str | None:
    """As a report has it; a process that went to another folder cannot know that."""
    return None if words["place"] is None else shown_briefly(str(words["place"]))


def purposes() -> list[str]:
    """What the processes of a run were asked to write a timeline for."""
    return os.environ.get(PURPOSES_VARIABLE, "").split()


def file_of(folder: Path, pid: int) -> Path:
    return folder / f"{pid}{_SUFFIX}"


class TimelineReader(Generic[Process]):
    """Reads the files of a folder; each `update` reads what was added since."""

    def __init__(self, folder: Path, process_type: type[Process]) -> None:
        self._folder = folder
        self._type = process_type
        self._read: dict[Path, int] = {}
        self._processes: dict[int, Process] = {}

    def update(self) -> list[Process]:
        """The processes that have said what they are, in the order they began."""
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            pid = int(path.stem)
            process = self._processes.setdefault(pid, self._type(pid))
            for text in self._lines(path):
                # The last line of a killed process may be damaged.
                try:
                    process.add(json.loads(text))
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue
        named = [each for each in self._processes.values() if each.name]
        return sorted(named, key=lambda each: each.begin_ns)

    def _lines(self, path: Path) -> list[bytes]:
        """The complete lines since the last time."""
        begin = self._read.get(path, 0)
        with path.open("rb") as file:
            file.seek(begin)
            text = file.read(max(0, _MOST_BYTES - begin))
        complete = text[: text.rfind(b"\n") + 1]
        self._read[path] = begin + len(complete)
        return complete.splitlines()
