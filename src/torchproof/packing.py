"""`pack`: from a target or a saved run to something that others can run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchproof import store
from torchproof.capture import Options
from torchproof.checking import check
from torchproof.records import Run, UserError
from torchproof.target import Target
from torchproof.target import parse as parse_target

if TYPE_CHECKING:
    from torchproof import deploy, repro
    from torchproof.packs import Made

Progress = Callable[[str], None]


def pack(
    what: str | Target | Run,
    options: Options | None = None,
    *,
    purpose: Literal["repro", "deploy"],
    asked: repro.Asked | deploy.Asked | None = None,
    dest: str | Path | None = None,
    overwrite: bool = False,
    effort: str = "normal",
    progress: Progress = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Made:
    """A pack for others to run, verified in a clean process; else `packs.Unverified`.

    `what` is a target, or for a repro a saved run of `check` too; without one, the
    target is checked first.
    """
    from torchproof import deploy, packs, repro

    if dest is not None:
        packs.assert_placeable(Path(dest), overwrite)
    what = parse_target(what) if isinstance(what, str) else what
    options = options or Options()
    talk: dict[str, Any] = {"progress": progress, "command": command}
    talk |= {"dest": dest and Path(dest), "overwrite": overwrite}
    if purpose == "deploy":
        if isinstance(what, Run):
            raise UserError(f"{what.id} is a run: pack --for deploy takes a target")
        given = asked if isinstance(asked, deploy.Asked) else deploy.Asked()
        return deploy.pack(what, options, asked=given, **talk)
    wanted = asked if isinstance(asked, repro.Asked) else repro.Asked()
    if isinstance(what, Run):
        subject = _of_run(what, options)
    else:
        run = check(
            what,
            options,
            effort=effort,
            select=[code.partition("@")[0] for code in wanted.select],
            progress=progress,
            command=command,
            save_in=save_in,
        )
        subject = repro.Subject(run, what, options, has_run=True)
    return repro.pack(subject, wanted, **talk)


def _of_run(run: Run, now: Options) -> repro.Subject:
    """What a run of `check` ran, and how; limits and silence are those asked for."""
    from torchproof import repro

    if run.verb != "check":
        raise UserError(f"{run.id} is a run of {run.verb}: a repro needs one of check")
    given = dict(run.options)
    target = parse_target(run.target, given.get("arguments", ()))
    names = ("compile", "as_written", "train", "device", "size")
    told = {name: given[name] for name in names if name in given}
    options = Options(**told, timeout_s=now.timeout_s, quiet=now.quiet)
    return repro.Subject(run, target, options)
