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
from torchproof.packs.pack_result import PackResult
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
    deploy_options: DeployOptions,
    *,
    dest: Path | None = None,
    overwrite: bool = False,
    progress: Progress = lambda text: None,
    command: str = "",
) -> PackResult:
    """Write the pack and verify it.

    Raises `Unverified` if a fresh process does not load all compiled code from the
    pack, or if its outputs differ from eager's.
    """
    _assert_makeable(target, options, deploy_options)
    dest = dest or Path(f"torchproof-deploy-{target.name}")
    redactor = Redactor.here()
    redact = redactor.text
    with (
        writing.folder(dest, overwrite=overwrite) as stage,
        writing.scratch("torchproof-deploy-") as scratch,
    ):
        progress("compiling in a fresh process")
        job = _job(target, options, deploy_options, stage.path) | {
            "scratch": str(scratch)
        }
        build_run = _child({**job, "role": "build"}, options, progress)
        facts = build_run.last("facts")
        manifest = Manifest(
            kind="deploy",
            name=target.name,
            torchproof=__version__,
            target=redact(target.text),
            command=redact(command),
            environment=_without_folders(facts["environment"]),
            details=facts["details"],
        )
        seal = functools.partial(_sealed, stage, facts["about"], deploy_options.key)
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
    return PackResult(dest, manifest, (*proof.get("notes", ()), *redactor.notes))


def _sealed(
    stage: writing.Stage,
    about: Mapping[str, str],
    key: bytes | None,
    manifest: Manifest,
) -> Manifest:
    descriptions = {name: _about(name, about) for name in stage.names()}
    return stage.seal(manifest, descriptions, key)


def _without(
    details: Mapping[str, Any], dropped: Mapping[str, str], stage: Path
) -> dict[str, Any]:
    """The details without precompiled calls whose guards miss a change.

    `torchproof.load` traces these calls at start instead.
    """
    calls = []
    for call in details["calls"]:
        why = dropped.get(call["entry"].get("file"))
        calls.append(call if why is None else {**call, "entry": {"why_not": why}})
    for file in dropped:
        (stage / file).unlink()
        with contextlib.suppress(OSError):  # the directory has other files
            (stage / file).parent.rmdir()
    return {**details, "calls": calls}


def _without_folders(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The environment without the cache directories, which were temporary."""
    steering = environment.get("variables", {})
    variables = {k: v for k, v in steering.items() if not k.endswith("_CACHE_DIR")}
    redacted: dict[str, Any] = Redactor.here().json(
        {**environment, "variables": variables}
    )
    return redacted


def _assert_makeable(
    target: Target, options: Options, deploy_options: DeployOptions
) -> None:
    if target.kind not in ("workload", "factory"):
        raise UserError(
            f"{target.text} is a {target.kind}: a deploy pack needs a workload or a"
            " factory, since verification builds the model again"
        )
    if deploy_options.artifact not in ARTIFACTS:
        choices = ", ".join(ARTIFACTS)
        raise UserError(
            f"--artifact {deploy_options.artifact}: choose one of {choices}"
        )
    if options.as_written:
        raise UserError("--as-written: a deploy pack compiles the model itself")
    if options.compile:
        raise UserError("--compile: use --strategy instead, such as full:max-autotune")
    if deploy_options.recipe and deploy_options.strategy:
        raise UserError(
            "--recipe and --strategy exclude each other: the recipe names the strategy"
        )
    if deploy_options.recipe:
        recipe.load(deploy_options.recipe)  # fails before the work if there is none
    if deploy_options.key is not None:
        keys.private_key(deploy_options.key)
    assert_size(target, options.size)


def _job(
    target: Target, options: Options, deploy_options: DeployOptions, stage: Path
) -> dict[str, Any]:
    return {
        "target": dataclasses.asdict(target),
        "train": options.train,
        "device": options.device,
        "size": options.size,
        "artifact": deploy_options.artifact,
        "recipe": deploy_options.recipe,
        "strategy": deploy_options.strategy or "full",
        "stage": str(stage),
    }


def _child(job: Mapping[str, Any], options: Options, progress: Progress) -> Followed:
    """Run a job in a fresh process with empty caches."""
    scratch = job["scratch"]
    child_job = {**job, "cache": tempfile.mkdtemp(dir=scratch) + "/cache"}
    child_job["questions"] = f"{scratch}/questions.pt"
    under = Conditions(timeout_s=options.timeout_s, quiet=options.quiet)
    child = follow(
        "torchproof.packs.deploy",
        json.dumps(child_job),
        _ProgressPrinter(progress),
        under,
    )
    for entry in child.of("unusable"):
        raise UserError(entry["message"])
    for entry in child.of("unverified"):
        raise Unverified(entry["message"])
    if child.ending == "interrupted":
        raise KeyboardInterrupt
    if child.ending == "timeout":
        raise UserError(f"not finished within --timeout {options.timeout_s:g} s")
    if child.code or not child.of("facts"):
        why = child.failure(script=False) or "its process ended without an answer"
        if job["role"] == "verify":  # loading the pack crashed the process
            raise Unverified(f"it does not load in a fresh process: {why}")
        raise UserError(f"the pack could not be built: {why}")
    return child


class _ProgressPrinter:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, entry: Entry, seconds: float) -> None:
        if entry["kind"] == "progress" and seconds >= 1:  # print nothing below 1 s
            self._progress(f"{entry['text']}, {seconds:.0f} s")


def _about(name: str, descriptions: Mapping[str, str]) -> str:
    for start, text in {**_ABOUT, **descriptions}.items():
        if name == start or (start.endswith("/") and name.startswith(start)):
            return text
    return ""
