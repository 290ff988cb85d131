"""Writes a deploy pack: compiles in one child process, verifies in another.

Takes a target and a strategy or recipe, returns a directory that `torchproof.load`
loads. This module does not import torch.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchproof import __version__
from torchproof.packs import writing
from torchproof.packs.redaction.redactor import Redactor
from torchproof.packs.writing import PackResult
from torchproof.process import Conditions, Entry, Followed, follow
from torchproof.records import JsonObject, Record, UserError, one_line
from torchproof.records.options import ARTIFACTS, DeployOptions
from torchproof.runtime import Manifest, Refused, Unverified, keys
from torchproof.strategies import recipe
from torchproof.targets import Job, Options, Target, assert_size, instead_of_script

Progress = Callable[[str], None]

_ABOUT = {
    "torchproof.toml": "the recipe; contains class names of the model",
    "caches/": "compiled code of the model's graphs, without weights",
    "entries/": "a precompiled call: contains names and plain values of the model",
    "model.pt2": "compiled code, its C++ source and the model's weights",
}
_HOOKS = (
    "a deploy pack has the code of a whole model, and the hooks of FSDP2, which gather"
    " weights, run between its blocks: compile the blocks in the service"
)
_UNPACKED = {
    "ddp": "the pack of one process fits inside DDP: omit --wrap and --ranks",
    "fsdp2": _HOOKS,
    "tp+fsdp2": _HOOKS,
}


@dataclass(frozen=True)
class PackJob(Record):
    """What a child process has to build or verify.

    `stage` is the directory of the new pack, `scratch` one for files that the second
    child needs, `cache` an empty one for torch's caches. Of several `ranks`, this is
    the job of one, which meets the others at `port`.
    """

    run: Job
    artifact: str
    recipe: str | None
    strategy: str
    stage: str
    scratch: str
    cache: str = ""
    role: Literal["build", "verify"] = "build"
    ranks: int = 1
    rank: int = 0
    port: int = 0


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
    with (
        writing.folder(dest, overwrite=overwrite) as stage,
        writing.scratch("torchproof-deploy-") as scratch,
    ):
        job = PackJob(
            dataclasses.replace(Job.of(target, options), wrap=deploy_options.wrap),
            artifact=deploy_options.artifact,
            recipe=deploy_options.recipe,
            strategy=deploy_options.strategy or "full",
            stage=str(stage.path),
            scratch=str(scratch),
            ranks=deploy_options.ranks or 1,
        )
        progress("compiling in a fresh process")
        facts = _child(job, options, progress)
        manifest = Manifest(
            kind="deploy",
            name=target.name,
            torchproof=__version__,
            target=redactor.text(target.text),
            command=redactor.text(command),
            environment=redactor.json(_without_folders(facts["environment"])),
            details=facts["details"],
        )
        progress("loading it in another fresh process")
        stage.seal(manifest, _about(stage))
        proof = _child(dataclasses.replace(job, role="verify"), options, progress)
        details = {**manifest.details, "verified": proof}
        manifest = dataclasses.replace(manifest, details=details)
        manifest = stage.seal(manifest, _about(stage), deploy_options.key)
    return PackResult(dest, manifest, (*proof.get("notes", ()), *redactor.notes()))


def _without_folders(environment: JsonObject) -> JsonObject:
    """The environment without the cache directories, which were temporary."""
    steering = environment.get("variables", {})
    variables = {k: v for k, v in steering.items() if not k.endswith("_CACHE_DIR")}
    return {**environment, "variables": variables}


def _assert_makeable(
    target: Target, options: Options, deploy_options: DeployOptions
) -> None:
    artifact = deploy_options.artifact
    if target.kind == "script":
        raise UserError(
            f"{target.text} is a script, and verification builds the model again:"
            f" {instead_of_script(target, 'pack', '--for deploy')}"
        )
    if target.kind not in ("workload", "factory"):
        raise UserError(
            f"{target.text} is a {target.form}: a deploy pack needs a workload or a"
            " factory, since verification builds the model again"
        )
    if artifact not in ARTIFACTS:
        raise UserError(f"--artifact {artifact}: choose one of {', '.join(ARTIFACTS)}")
    if options.train and artifact != "caches":
        raise UserError(f"--artifact {artifact} supports only inference: omit --train")
    _assert_ranks(deploy_options)
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


def _assert_ranks(deploy_options: DeployOptions) -> None:
    ranks, wrap = deploy_options.ranks, deploy_options.wrap
    if ranks is not None and ranks < 2:
        raise UserError(f"--ranks {ranks}: give 2 or more, or omit it")
    if ranks is not None and deploy_options.artifact != "caches":
        raise UserError(
            f"--artifact {deploy_options.artifact} is for one process: omit --ranks"
        )
    if wrap in _UNPACKED:
        raise UserError(f"--wrap {wrap}: {_UNPACKED[wrap]}")
    if wrap not in (None, "tp"):
        raise UserError(f"--wrap {wrap}: a deploy pack supports only tp")
    if wrap is not None and ranks is None:
        raise UserError(f"--wrap {wrap} is for several ranks: add --ranks N")


def _child(job: PackJob, options: Options, progress: Progress) -> JsonObject:
    """Run a job in a fresh process with empty caches; returns what it reports."""

    def show(entry: Entry, seconds: float) -> None:
        if entry["kind"] == "progress" and seconds >= 1:  # print nothing below 1 s
            progress(f"{entry['text']}, {seconds:.0f} s")

    job = dataclasses.replace(job, cache=tempfile.mkdtemp(dir=job.scratch) + "/cache")
    child = follow(
        "torchproof.packs.deploy",
        json.dumps(job.to_json()),
        show,
        Conditions(timeout_s=options.timeout_s, quiet=options.quiet),
    )
    _assert_finished(child, job, options)
    return child.last("facts")


def entry_of(error: Exception) -> Entry:
    """What a child reports if it fails."""
    if isinstance(error, Refused | Unverified):
        return {"kind": "unverified", "message": str(error)}
    if isinstance(error, UserError):
        details = error.details
        return {"kind": "unusable", "message": str(error), "details": details}
    reason = one_line(f"{type(error).__name__}: {error}", 300)
    return {"kind": "unusable", "message": f"the pack could not be built: {reason}"}


def error_of(entry: Entry) -> UserError | None:
    """The error that an entry reports; None if it reports none."""
    if entry["kind"] == "unverified":
        return Unverified(entry["message"])
    if entry["kind"] == "unusable":
        return UserError(entry["message"], details=entry.get("details", ""))
    return None


def _assert_finished(child: Followed, job: PackJob, options: Options) -> None:
    for entry in child.entries:
        if error := error_of(entry):
            raise error
    if child.ending == "interrupted":
        raise KeyboardInterrupt
    if child.ending == "timeout":
        raise UserError(f"not finished within --timeout {options.timeout_s:g} s")
    if child.code or not child.of("facts"):
        why = child.failure(script=False) or "its process ended without an answer"
        if job.role == "verify":  # loading the pack crashed the process
            raise Unverified(f"it does not load in a fresh process: {why}")
        raise UserError(f"the pack could not be built: {why}")


def _about(stage: writing.Stage) -> dict[str, str]:
    """What each file contains."""
    return {
        name: _ABOUT.get(name, _ABOUT.get(f"{name.partition('/')[0]}/", ""))
        for name in stage.names()
    }
