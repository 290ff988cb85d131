"""Packages built here and asked in a process of their own, as `pack` does it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_commands

from torchproof.packs import writing
from torchproof.packs.deploy import PackJob, packages
from torchproof.records import schema
from torchproof.records.run import Frame
from torchproof.runtime.loading.pack_details import PackageDetails
from torchproof.runtime.loading.packages import DeployedModel, load_package
from torchproof.runtime.pack_format.contents import open_pack
from torchproof.runtime.pack_format.manifest import Manifest
from torchproof.targets.job import Job
from torchproof.targets.target import Loaded, Target

VERIFIER = """
import json
from torchproof.packs.deploy import PackJob, packages
from torchproof.runtime import Unverified
try:
    print(json.dumps(packages.verify(PackJob.from_json(json.loads({job!r})))))
except Unverified as error:
    print(json.dumps(dict(ok=False, why=str(error))))
"""


def loaded(fn: Callable[..., Any], *calls: Any) -> Loaded:
    return Loaded(fn, list(calls), None, Frame(__file__, 1, "make"))


def _job(folder: Path, stage: Path) -> PackJob:
    return PackJob(
        Job(Target("x.py:make", "factory", "x.py")),
        artifact="aoti",
        recipe=None,
        strategy="full",
        stage=str(stage),
        scratch=str(folder),
    )


def built(folder: Path, target: Loaded) -> PackageDetails:
    """A pack in `folder/pack`, and what its manifest says."""
    with writing.folder(folder / "pack") as stage:
        details = packages.build(target, _job(folder, stage.path))
        plain = schema.to_plain(details)
        stage.seal(Manifest("deploy", "model", "0", details=plain))
    return details


def verify(folder: Path) -> dict[str, Any]:
    """The verification of the pack in a process without the model's code."""
    job = json.dumps(_job(folder, folder / "pack").to_json())
    done = forked_commands.python(VERIFIER.format(job=job), cwd=folder)
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def opened(folder: Path) -> DeployedModel:
    return load_package(open_pack(folder / "pack"))
