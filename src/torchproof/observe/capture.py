"""Runs a target in a child process, and reports its progress.

The parent never imports torch. If the child crashes, hangs or is killed, the events
until then are still returned.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from torchproof.observe import timeline
from torchproof.observe.gathering import REPORTED, gather
from torchproof.observe.trace_log import interpret, read_folder
from torchproof.process import Conditions, Entry, follow
from torchproof.records import (
    Frame,
    JsonObject,
    Observation,
    definition,
    qualified_name,
    whose,
)
from torchproof.targets import Job, Options, Target, live


def observe(
    target: Target, options: Options, progress: Callable[[str], None]
) -> Observation:
    """Runs the target and returns its events, or reads them from a recorded trace."""
    if target.kind == "trace":
        records = read_folder(Path(target.where))
        return Observation(tuple(interpret(records)), {"torch": None, "device": None})
    if live.why_not_sent(target):
        from torchproof.observe.in_process import observe_here

        return observe_here(target, options)
    job = json.dumps(Job.of(target, options).to_json())
    conditions = Conditions(timeout_s=options.timeout_s, quiet=options.quiet)
    on_entry = _ProgressReporter(progress)
    child = follow("torchproof.observe.child", job, on_entry, conditions)
    timeline.process_ended(child.pid)
    return gather(child, target)


class _ProgressReporter:
    """Reports which function is being compiled, as the stream grows."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._planned: int | None = None
        self._files: dict[int, str] = {}  # by the number that a trace gives them
        self._entries: dict[tuple[object, ...], str] = {}  # compiled objects by code
        self._compiled = "the target"  # what was compiled last

    def __call__(self, entry: Entry, seconds: float) -> None:
        if entry["kind"] == "plan":
            self._planned = entry["calls"]
        elif entry["kind"] == "wrapper":
            self._compiled = entry["name"]
            codes = filter(None, (entry["function"], *entry["around"]))
            keys = ((code["file"], code["line"], code["function"]) for code in codes)
            self._entries |= dict.fromkeys(keys, entry["name"])
        elif entry["kind"] == "trace":
            if text := entry["metadata"].get("str"):
                self._files[text[1]] = text[0]
            if "dynamo_start" in entry["metadata"]:
                self._report(entry, seconds)

    def _report(self, entry: Entry, seconds: float) -> None:
        if seconds < 1:  # short runs report no progress
            return
        call = entry.get("call")
        of = f" of {self._planned}" if self._planned else ""
        where = "" if call is None else f" in call {call + 1}{of}"
        name = self._name(entry["metadata"]["dynamo_start"]["stack"][-1])
        # A terminal shows it until the next one begins, also when it has ended.
        self._progress(f"began to compile {name}{where} after {seconds:.0f} s")

    def _name(self, record: JsonObject) -> str:
        """The model's class, or a function by its qualified name."""
        file = self._files.get(record["filename"], "")
        frame = Frame(file, record["line"], record["name"])
        if entry := self._entries.get((file, frame.line, frame.function)):
            return entry
        if frame.function in timeline.WRAPPING or whose(file) not in REPORTED:
            return self._compiled
        return qualified_name(definition(frame))
