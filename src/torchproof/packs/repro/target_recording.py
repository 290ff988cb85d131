"""What a target's run gives to write repros from: starts the child that records it."""

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
class Captured:
    """The candidates of a run, the last one of each origin, and why there are not more."""

    candidates: tuple[Candidate, ...] = ()
    refused: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict, hash=False)
    configs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    train: bool = False


def captured(
    target: Target,
    options: Options,
    *,
    folder: Path,
    more: Mapping[str, Any],
    progress: Callable[[str], None],
) -> Captured:
    """Runs the target once more. What was told before it ended or hung is kept.

    `folder` is for values of inputs; `more` is what else the child has to know.
    """
    told = json.loads(job(target, options)) | {"folder": str(folder), **more}

    def notice(entry: Entry, seconds: float) -> None:
        progress(f"recording what is compiled, {seconds:.0f} s")

    under = Conditions(timeout_s=options.timeout_s, quiet=options.quiet)
    seen = follow(
        "torchproof.packs.repro.recording_child", json.dumps(told), notice, under
    )
    if seen.ending == "interrupted":
        raise KeyboardInterrupt
    if unusable := seen.last("unusable"):
        raise UserError(unusable["message"])
    candidates: dict[tuple[str, str], Candidate] = {}
    for entry in seen.of("candidate"):
        candidate = Candidate.from_json({k: v for k, v in entry.items() if k != "kind"})
        candidates[candidate.form, candidate.origin] = candidate
    reasons = [entry["why"] for entry in seen.of("refused")]
    if failure := seen.failure(script=target.kind == "script"):
        reasons.append(failure)
    return Captured(
        tuple(candidates.values()),
        tuple(dict.fromkeys(reasons)),
        seen.last("environment"),
        seen.last("configs"),
        bool(seen.last("plan").get("train")),
    )
