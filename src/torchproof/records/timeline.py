"""What the processes of a run did and when: spans and moments, on one clock.

Each process appends lines of JSON to a file of its own in one folder, so that a killed
process loses nothing. All times are nanoseconds of CLOCK_MONOTONIC, which the processes
of a machine share.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from torchproof.records.blame import shown_briefly
from torchproof.records.mappings import JsonObject

VARIABLE = "TORCHPROOF_TIMELINE"  # the folder, for child processes
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
    details: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """Something that happens and does not last."""

    track: str
    name: str
    category: str
    at_ns: int
    details: JsonObject = field(default_factory=dict)


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
    _open: dict[int, Span] = field(default_factory=dict)

    def add(self, line: JsonObject) -> None:
        """Takes one line of the file; raises if it is not as `Recorder` writes it."""
        at = int(line["ns"])
        match line["do"]:
            case "process":
                self.name, self.begin_ns = str(line["name"]), at
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
        self.last_ns = max(self.last_ns, at)


def _span(line: JsonObject, begin_ns: int) -> Span:
    words = str(line["track"]), str(line["name"]), str(line["category"])
    return Span(*words, begin_ns, details=_details(line))


def _details(line: JsonObject) -> JsonObject:
    details = dict(line["details"])
    return details | {"place": _place(details)} if "place" in details else details


def _place(words: JsonObject) -> str | None:
    """As a report has it; a process that went to another folder cannot know that."""
    return None if words["place"] is None else shown_briefly(str(words["place"]))


def file_of(folder: Path, pid: int) -> Path:
    return folder / f"{pid}{_SUFFIX}"


def read(folder: Path) -> list[ProcessTimeline]:
    """The processes that have said what they are, in the order they began."""
    processes = []
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        process = ProcessTimeline(int(path.stem))
        with path.open("rb") as file:
            lines = file.read(_MOST_BYTES).splitlines()
        for text in lines:
            # The last line of a killed process may be damaged.
            try:
                process.add(json.loads(text))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        processes.append(process)
    named = [each for each in processes if each.name]
    return sorted(named, key=lambda each: each.begin_ns)
