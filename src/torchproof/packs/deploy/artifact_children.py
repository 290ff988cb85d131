"""The jobs of `deploy`'s child processes: `build` an artifact, `verify` it in another.

`caches` are compiled code for `torchproof.load`. The other artifacts are packages that
need none of the model's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from torchproof.packs.deploy import (
    aoti,
    package_worker,
    precompiled_builds,
    torchscript,
    warm_caches,
)
from torchproof.packs.deploy.tensor_function import Refusal
from torchproof.packs.redaction.redactor import Redactor
from torchproof.records import UserError
from torchproof.runtime import (
    ARTIFACTS,
    Unverified,
    compatibility,
    example_inputs,
    open_pack,
)
from torchproof.targets import Loaded, Target, calls
from torchproof.torch_private import environment, is_compiled

Progress = Callable[[str], None]
_PACKAGE_BUILDERS = {"aoti": aoti.build, "torchscript": torchscript.build}


def build(target: Target, job: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Fill the stage; return the manifest's details and a description of each file."""
    loaded = _loaded(target, job)
    stage = Path(job["stage"])
    if job["artifact"] == "caches":
        details = warm_caches.build(loaded, stage, job)
        progress("precompiling calls")
        details = precompiled_builds.write(target, job, details)
    else:
        details = _build_package(loaded, stage, job)
    about = details.pop("files", {})
    device = (
        compatibility.device_of(loaded.fn) or details.get("device") or job["device"]
    )
    details["place"] = compatibility.environment_facts(device or "cpu")
    where = Redactor.here().json(environment.describe(job))
    return {"details": details, "about": about, "environment": where}


def verify(target: Target, job: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Load the artifact and compare its outputs with eager's; return the result."""
    if job["artifact"] == "caches":
        return warm_caches.verify(target, job, progress)
    return _verify_package(job)


def _loaded(target: Target, job: dict[str, Any]) -> Loaded:
    loaded = calls.fresh(target, job)
    if is_compiled(loaded.fn) or calls.claims(loaded.fn, "compiles_itself"):
        raise UserError(
            f"{target.text} compiles itself: a deploy pack needs the model before it is"
            " compiled"
        )
    return loaded


def _build_package(
    loaded: Loaded, stage: Path, job: Mapping[str, Any]
) -> dict[str, Any]:
    """The manifest's details; writes the verification inputs beside the stage."""
    descriptions = [example_inputs.describe(call) for call in loaded.calls]
    fresh = [
        example_inputs.make(description, seed=1)
        for description in descriptions
        if "why_not" not in description
    ]
    try:
        return _PACKAGE_BUILDERS[job["artifact"]](
            loaded, stage, {**job, "fresh": fresh}
        )
    except Refusal as error:
        raise Unverified(str(error)) from error


def _verify_package(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the package on the verification inputs, with the model's modules blocked."""
    contents = open_pack(job["stage"])
    details = contents.manifest.details
    sys.meta_path.insert(0, package_worker.Blocked(details["without"]))
    deployed = ARTIFACTS[details["artifact"]](contents)
    result = package_worker.run_verification(
        deployed, torch.load(job["questions"], weights_only=True)
    )
    if not result["ok"]:
        raise Unverified(
            f"the package's output differs from the model's on {result['where']}:"
            f" {result['why']}"
        )
    return result
