"""Runs a target once more in a child process that records its graphs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from torchproof.packs.repro.candidate import Candidate, RecordedFacts
from torchproof.process import Conditions, Entry, follow
from torchproof.records import JsonObject, Record, UserError
from torchproof.targets import Job, Options


@dataclass(frozen=True)
class RecordingJob(Record):
    """A run of a target to record.

    The child writes tensors to `folder`, and those of the model only with `weights`.
    """

    run: Job
    folder: str
    weights: bool = False


@dataclass(frozen=True)
class TargetRecording:
    """The last candidate of each origin; `refused` says why others do not exist."""

    candidates: tuple[Candidate, ...] = ()
    refused: tuple[str, ...] = ()
    facts: RecordedFacts = field(default_factory=RecordedFacts, hash=False)
    train: bool = False


def record_target(
    job: RecordingJob, options: Options, progress: Callable[[str], None]
) -> TargetRecording:
    """Runs the target; if it fails or hangs, returns what was recorded until then."""

    def notice(entry: Entry, seconds: float) -> None:
        progress(f"recording compiled code, {seconds:.0f} s")

    under = Conditions(timeout_s=options.timeout_s, quiet=options.quiet)
    child = "torchproof.packs.repro.recording_child"
    entries = follow(child, json.dumps(job.to_json()), notice, under)
    if entries.ending == "interrupted":
        raise KeyboardInterrupt
    if unusable := entries.last("unusable"):
        raise UserError(unusable["message"], details=unusable.get("details", ""))
    candidates: dict[str, Candidate] = {}
    for entry in entries.of("candidate"):
        candidate = Candidate(**_plain(entry))
        candidates[candidate.origin] = candidate
    reasons = [entry["why"] for entry in entries.of("refused")]
    if failure := entries.failure(script=job.run.target.kind == "script"):
        reasons.append(failure)
    return TargetRecording(
        candidates=tuple(candidates.values()),
        refused=tuple(dict.fromkeys(reasons)),
        facts=cast(
            RecordedFacts,
            _plain(entries.last("environment"))
            | {"configs": _plain(entries.last("configs"))},
        ),
        train=bool(entries.last("plan").get("train")),
    )


def _plain(entry: Entry) -> JsonObject:
    return {name: value for name, value in entry.items() if name != "kind"}
