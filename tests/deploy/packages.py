"""Packages built here and asked in a process of their own, as `pack` does it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchproof.deploy import exported, traced
from torchproof.loading.artifacts import ARTIFACTS
from torchproof.loading.deployed import Deployed
from torchproof.packs import writing
from torchproof.packs.contents import open_pack
from torchproof.packs.manifest import Manifest
from torchproof.records import Frame
from torchproof.target import Loaded

BUILDS = {"aoti": exported.build, "torchscript": traced.build}


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
    command = [sys.executable, "-m", "torchproof.deploy.answering", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def opened(folder: Path) -> Deployed:
    with open_pack(folder / "pack") as contents:
        return ARTIFACTS[contents.manifest.details["artifact"]](contents)
