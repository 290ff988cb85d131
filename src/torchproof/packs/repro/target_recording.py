"""Runs a target once more in a child process that records candidates of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof.observe import job
from torchproof.packs.repro.candidate import Candidate
from torchproof.process import Conditions, Entry, follow
from torchproof.records import UserError
from torchproof.targets import Options, Target


@dataclass(frozen=True)
class TargetRecording:
    """The last candidate of each origin; `refused` says why others do not exist."""

    candidates: tuple[Candidate, ...] = ()
    refused: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    train: bool = False


def record_target(
    target: Target,
    options: Options,
    *,
    folder: Path,
    more: Mapping[str, Any],
    progress: Callable[[str], None],
) -> TargetRecording:
    """Runs the target; if it fails or hangs, returns what was recorded until then.

    The child writes tensors to `folder`; `more` are additional fields of its job.
    """
    request = json.loads(job(target, options)) | {"folder": str(folder), **more}

    def notice(entry: Entry, seconds: float) -> None:
        progress(f"recording compiled code, {seconds:.0f} s")

    under = Conditions(timeout_s=options.timeout_s, quiet=options.quiet)
    child = "torchproof.packs.repro.recording_child"
    entries = follow(child, json.dumps(request), notice, under)
    if entries.ending == "interrupted":
        raise KeyboardInterrupt
    if unusable := entries.last("unusable"):
        raise UserError(unusable["message"])
    candidates: dict[tuple[str, str], Candidate] = {}
    for entry in entries.of("candidate"):
        candidate = Candidate.from_json(_plain(entry))
        candidates[candidate.form, candidate.origin] = candidate
    reasons = [entry["why"] for entry in entries.of("refused")]
    if failure := entries.failure(script=target.kind == "script"):
        reasons.append(failure)
    return TargetRecording(
        candidates=tuple(candidates.values()),
        refused=tuple(dict.fromkeys(reasons)),
        facts={
            **_plain(entries.last("environment")),
            "configs": _plain(entries.last("configs")),
        },
        train=bool(entries.last("plan").get("train")),
    )


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "kind"}
