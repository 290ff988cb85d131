"""What the children of `deploy` do, by artifact: one makes it, another one tries it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchproof.packs.deploy import packages, precompiled_builds, warm_caches
from torchproof.packs.redaction.redactor import Redactor
from torchproof.records import UserError
from torchproof.runtime import compatibility
from torchproof.targets import Loaded, Target, calls
from torchproof.torch_private import environment, is_compiled

Progress = Callable[[str], None]


def build(target: Target, job: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Fills the stage; the manifest's details and what each file is about."""
    loaded = _loaded(target, job)
    room = warm_caches if job["artifact"] == "caches" else packages
    details: dict[str, Any] = room.build(loaded, Path(job["stage"]), job)
    if job["artifact"] == "caches":
        progress("writing calls that need no tracing")
        details = precompiled_builds.write(target, job, details)
    about = details.pop("files", {})
    device = (
        compatibility.device_of(loaded.fn) or details.get("device") or job["device"]
    )
    details["place"] = compatibility.environment_facts(device or "cpu")
    where = Redactor.here().json(environment.describe(job))
    return {"details": details, "about": about, "environment": where}


def verify(target: Target, job: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """What was compared, and what came of it."""
    if job["artifact"] == "caches":
        return warm_caches.verify(target, job, progress)
    return packages.verify(job)


def _loaded(target: Target, job: dict[str, Any]) -> Loaded:
    loaded = calls.fresh(target, job)
    if is_compiled(loaded.fn) or calls.claims(loaded.fn, "compiles_itself"):
        raise UserError(
            f"{target.text} does its own compiling: a deploy pack needs the model as it"
            " is before that"
        )
    return loaded
