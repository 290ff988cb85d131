"""Packages that need none of the model's code: made here, asked in another process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchproof.deploy import answering, exported, traced
from torchproof.deploy.subject import Refusal
from torchproof.loading import inputs
from torchproof.loading.artifacts import ARTIFACTS
from torchproof.packs import Unverified, open_pack
from torchproof.target import Loaded

_MAKERS = {"aoti": exported.build, "torchscript": traced.build}


def build(loaded: Loaded, stage: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest's details; what the package is to be asked lies beside the stage."""
    told = [inputs.described(call) for call in loaded.calls]
    fresh = [inputs.made(each, seed=1) for each in told if "why_not" not in each]
    try:
        return _MAKERS[job["artifact"]](loaded, stage, {**job, "fresh": fresh})
    except Refusal as error:
        raise Unverified(str(error)) from error


def verify(job: Mapping[str, Any]) -> dict[str, Any]:
    """Asks the package, with the model's modules out of reach."""
    with open_pack(job["stage"]) as contents:
        details = contents.manifest.details
        sys.meta_path.insert(0, answering.Blocked(details["without"]))
        deployed = ARTIFACTS[details["artifact"]](contents)
    found = answering.judged(deployed, torch.load(job["questions"], weights_only=True))
    if not found["ok"]:
        raise Unverified(
            f"the package answers otherwise than the model, asked {found['where']}:"
            f" {found['why']}"
        )
    return found
