"""Packages that need none of the model's code: made here, asked in another process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchproof.packs.deploy import aoti, package_worker, torchscript
from torchproof.packs.deploy.tensor_function import Refusal
from torchproof.runtime import ARTIFACTS, Unverified, example_inputs, open_pack
from torchproof.targets import Loaded

_MAKERS = {"aoti": aoti.build, "torchscript": torchscript.build}


def build(loaded: Loaded, stage: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest's details; what the package is to be asked lies beside the stage."""
    told = [example_inputs.describe(call) for call in loaded.calls]
    fresh = [
        example_inputs.make(each, seed=1) for each in told if "why_not" not in each
    ]
    try:
        return _MAKERS[job["artifact"]](loaded, stage, {**job, "fresh": fresh})
    except Refusal as error:
        raise Unverified(str(error)) from error


def verify(job: Mapping[str, Any]) -> dict[str, Any]:
    """Asks the package, with the model's modules out of reach."""
    with open_pack(job["stage"]) as contents:
        details = contents.manifest.details
        sys.meta_path.insert(0, package_worker.Blocked(details["without"]))
        deployed = ARTIFACTS[details["artifact"]](contents)
    found = package_worker.judged(
        deployed, torch.load(job["questions"], weights_only=True)
    )
    if not found["ok"]:
        raise Unverified(
            f"the package answers otherwise than the model, asked {found['where']}:"
            f" {found['why']}"
        )
    return found
