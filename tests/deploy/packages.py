"""Packages built here and asked in a process of their own, as `pack` does it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchproof.packs import writing
from torchproof.packs.deploy import aoti, torchscript
from torchproof.records.run import Frame
from torchproof.runtime.loading.deployed_model import DeployedModel
from torchproof.runtime.loading.packages import ARTIFACTS
from torchproof.runtime.pack_format.contents import open_pack
from torchproof.runtime.pack_format.manifest import Manifest
from torchproof.targets.target import Loaded

BUILDS = {"aoti": aoti.build, "torchscript": torchscript.build}


def loaded(fn: Callable[..., Any], *calls: Any) -> Loaded:
    return Loaded(fn, list(calls), None, Frame(__file__, 1, "make"))


def built(folder: Path, target: Loaded, artifact: str, **job: Any) -> dict[str, Any]:
    """A pack in `folder/pack`, and what its manifest says."""
    told = {"train": False, "questions": str(folder / "questions.pt"), **job}
    with writing.folder(folder / "pack") as stage:
        details = BUILDS[artifact](target, stage.path, told)
        stage.seal(Manifest("deploy", "model", "0", details=details), details["files"])
    return details


def asked(folder: Path, details: dict[str, Any]) -> dict[str, Any]:
    """What a process without the model's code says of the pack."""
    job = {
        "pack": str(folder / "pack"),
        "questions": str(folder / "questions.pt"),
        "blocked": details["without"],
    }
    command = [
        sys.executable,
        "-m",
        "torchproof.packs.deploy.package_worker",
        json.dumps(job),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def opened(folder: Path) -> DeployedModel:
    contents = open_pack(folder / "pack")
    return ARTIFACTS[contents.manifest.details["artifact"]](contents)
