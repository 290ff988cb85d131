"""Writes a deploy pack: compiles in one child process, verifies in another.

Takes a target and a strategy or recipe, returns a directory that `torchproof.load`
loads. This module does not import torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchproof import __version__
from torchproof.packs import writing
from torchproof.packs.made import Made
from torchproof.packs.redaction.redactor import Redactor
from torchproof.process import Conditions, Entry, Followed, follow
from torchproof.records import UserError
from torchproof.runtime import Manifest, Unverified, keys
from torchproof.strategies import recipe
from torchproof.targets import Options, Target, assert_size

ARTIFACTS = ("caches", "aoti", "torchscript")
Progress = Callable[[str], None]

_ABOUT = {
    "torchproof.toml": "the recipe; contains class names of the model",
    "graphs.json": "the cache keys of torch's graphs: hashes, settings, shapes",
    "caches/": "compiled code of the model's graphs, without weights",
    "entries/": "a precompiled call: contains names and plain values of the model",
}


@dataclass(frozen=True)
class DeployOptions:
    """The kind of artifact, and the recipe or the strategy to compile with."""

    recipe: str | None = None
    strategy: str | None = None
    artifact: str = "caches"
    key: bytes | None = None


def pack(
    target: Target,
    options: Options,
    *,
    asked: DeployOptions,
    dest: Path | None = None,
    overwrite: bool = False,
    progress: Progress = lambda text: None,
    command: str = "",
) -> Made:
    """Write the pack and verify it.

    Raises `Unverified` if a fresh process does not load all compiled code from the
    pack, or if its outputs differ from eager's.
    """
    _assert_makeable(target, options, asked)
    dest = dest or Path(f"torchproof-deploy-{target.name}")
    redact = Redactor.here().text
    with (
        writing.folder(dest, overwrite=overwrite) as stage,
        writing.scratch("torchproof-deploy-") as scratch,
    ):
        progress("compiling in a fresh process")
        job = _job(target, options, asked, stage.path) | {"scratch": str(scratch)}
        seen = _child({**job, "role": "build"}, options, progress)
        facts = seen.last("facts")
        manifest = Manifest(
            kind="deploy",
            name=target.name,
            torchproof=__version__,
            target=redact(target.text),
            command=redact(command),
            environment=_without_folders(facts["environment"]),
            details=facts["details"],
        )
        seal = functools.partial(_sealed, stage, facts["about"], asked.key)
        seal(manifest)
        progress("loading it in another fresh process")
        proof = _child({**job, "role": "verify"}, options, progress).last("facts")
        details = facts["details"]
        if dropped := proof.get("unnoticed"):
            details = _without(details, dropped, stage.path)
            seal(dataclasses.replace(manifest, details=details))
            proof = _child({**job, "role": "verify"}, options, progress).last("facts")
        details = {**details, "verified": proof}
        manifest = dataclasses.replace(manifest, details=details)
        manifest = seal(manifest)
    return Made(dest, manifest, tuple(proof.get("notes", ())))


def _sealed(
    stage: writing.Stage,
    about: Mapping[str, str],
    key: bytes | None,
    manifest: Manifest,
) -> Manifest:
    told = {name: _about(name, about) for name in stage.names()}
    return stage.seal(manifest, told, key)


def _without(
    details: Mapping[str, Any], dropped: Mapping[str, str], stage: Path
) -> dict[str, Any]:
    """The details without precompiled calls whose guards miss a change.

    `torchproof.load` traces these calls at start instead.
    """
    told = []
    for call in details["calls"]:
        why = dropped.get(call["entry"].get("file"))
        told.append(call if why is None else {**call, "entry": {"why_not": why}})
    for file in dropped:
        (stage / file).unlink()
        with contextlib.suppress(OSError):  # the directory has other files
            (stage / file).parent.rmdir()
    return {**details, "calls": told}


def _without_folders(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The environment without the cache directories, which were temporary."""
    steering = environment.get("variables", {})
    kept = {k: v for k, v in steering.items() if not k.endswith("_CACHE_DIR")}
    shown: dict[str, Any] = Redactor.here().json({**environment, "variables": kept})
    return shown


def _assert_makeable(target: Target, options: Options, asked: DeployOptions) -> None:
    if target.kind not in ("workload", "factory"):
        raise UserError(
            f"{target.text} is a {target.kind}: a deploy pack needs a workload or a"
            " factory, since verification builds the model again"
        )
    if asked.artifact not in ARTIFACTS:
        known = ", ".join(ARTIFACTS)
        raise UserError(f"--artifact {asked.artifact}: choose one of {known}")
    if options.as_written:
        raise UserError("--as-written: a deploy pack compiles the model itself")
    if options.compile:
        raise UserError("--compile: use --strategy instead, such as full:max-autotune")
    if asked.recipe and asked.strategy:
        raise UserError(
            "--recipe and --strategy exclude each other: the recipe names the strategy"
        )
    if asked.recipe:
        recipe.load(asked.recipe)  # fails before the work if there is none
    if asked.key is not None:
        keys.usable_key(asked.key)
    assert_size(target, options.size)


def _job(
    target: Target, options: Options, asked: DeployOptions, stage: Path
) -> dict[str, Any]:
    return {
        "target": dataclasses.asdict(target),
        "train": options.train,
        "device": options.device,
        "size": options.size,
        "artifact": asked.artifact,
        "recipe": asked.recipe,
        "strategy": asked.strategy or "full",
        "stage": str(stage),
    }


def _child(job: Mapping[str, Any], options: Options, progress: Progress) -> Followed:
    """Run a job in a fresh process with empty caches."""
    scratch = job["scratch"]
    told = {**job, "cache": tempfile.mkdtemp(dir=scratch) + "/cache"}
    told["questions"] = f"{scratch}/questions.pt"
    under = Conditions(timeout_s=options.timeout_s, quiet=options.quiet)
    seen = follow(
        "torchproof.packs.deploy", json.dumps(told), _Telling(progress), under
    )
    for entry in seen.of("unusable"):
        raise UserError(entry["message"])
    for entry in seen.of("unverified"):
        raise Unverified(entry["message"])
    if seen.ending == "interrupted":
        raise KeyboardInterrupt
    if seen.ending == "timeout":
        raise UserError(f"not finished within --timeout {options.timeout_s:g} s")
    if seen.code or not seen.of("facts"):
        why = seen.failure(script=False) or "its process ended without an answer"
        if job["role"] == "verify":  # loading the pack crashed the process
            raise Unverified(f"it does not load in a fresh process: {why}")
        raise UserError(f"the pack could not be built: {why}")
    return seen


class _Telling:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, entry: Entry, seconds: float) -> None:
        if entry["kind"] == "progress" and seconds >= 1:  # print nothing below 1 s
            self._progress(f"{entry['text']}, {seconds:.0f} s")


def _about(name: str, told: Mapping[str, str]) -> str:
    for start, text in {**_ABOUT, **told}.items():
        if name == start or (start.endswith("/") and name.startswith(start)):
            return text
    return ""
