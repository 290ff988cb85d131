"""The product as functions: `check`, `bench`, `tune`, `pack` and `compare`.

Each takes a target or saved runs and returns a record. The command line is built on
this module alone; what a verb needs is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchproof.records import Run, UserError, store
from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.checking import check as check
    from torchproof.measure import Comparison as Comparison
    from torchproof.measure import Questions as Questions
    from torchproof.measure import Thresholds as Thresholds
    from torchproof.measure import bench as bench
    from torchproof.measure import bench_plan as bench_plan
    from torchproof.measure import compare as compare
    from torchproof.packs import DeployOptions as DeployOptions
    from torchproof.packs import Made as Made
    from torchproof.packs import ReproOptions as ReproOptions
    from torchproof.packs import Unverified as Unverified
    from torchproof.packs import inspect as inspect
    from torchproof.packs import is_pack as is_pack
    from torchproof.packs import read_key as read_key
    from torchproof.packs import repro
    from torchproof.targets import WORKLOADS as WORKLOADS
    from torchproof.targets import Options as Options
    from torchproof.targets import Target as Target
    from torchproof.targets import parse as parse
    from torchproof.tuning import Objective as Objective
    from torchproof.tuning import TuneOptions as TuneOptions
    from torchproof.tuning import tune as tune

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "torchproof.checking": ["check"],
        "torchproof.measure": [
            "Comparison",
            "Questions",
            "Thresholds",
            "bench",
            "bench_plan",
            "compare",
        ],
        "torchproof.packs": [
            "DeployOptions",
            "Made",
            "ReproOptions",
            "Unverified",
            "inspect",
            "is_pack",
            "read_key",
        ],
        "torchproof.targets": ["Options", "Target", "WORKLOADS", "parse"],
        "torchproof.tuning": ["Objective", "TuneOptions", "tune"],
    },
)
__all__ += ["pack"]

Progress = Callable[[str], None]


def pack(
    what: str | Target | Run,
    options: Options | None = None,
    *,
    purpose: Literal["repro", "deploy"],
    asked: ReproOptions | DeployOptions | None = None,
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
    from torchproof.checking import check
    from torchproof.packs import (
        DeployOptions,
        ReproOptions,
        assert_placeable,
        deploy,
        repro,
    )
    from torchproof.targets import Options
    from torchproof.targets import parse as parse_target

    if dest is not None:
        assert_placeable(Path(dest), overwrite)
    what = parse_target(what) if isinstance(what, str) else what
    options = options or Options()
    talk: dict[str, Any] = {"progress": progress, "command": command}
    talk |= {"dest": dest and Path(dest), "overwrite": overwrite}
    if purpose == "deploy":
        if isinstance(what, Run):
            raise UserError(f"{what.id} is a run: pack --for deploy takes a target")
        given = asked if isinstance(asked, DeployOptions) else DeployOptions()
        return deploy.pack(what, options, asked=given, **talk)
    wanted = asked if isinstance(asked, ReproOptions) else ReproOptions()
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
    from torchproof.packs import repro
    from torchproof.targets import Options
    from torchproof.targets import parse as parse_target

    if run.verb != "check":
        raise UserError(f"{run.id} is a run of {run.verb}: a repro needs one of check")
    given = dict(run.options)
    target = parse_target(run.target, given.get("arguments", ()))
    names = ("compile", "as_written", "train", "device", "size")
    told = {name: given[name] for name in names if name in given}
    options = Options(**told, timeout_s=now.timeout_s, quiet=now.quiet)
    return repro.Subject(run, target, options)
