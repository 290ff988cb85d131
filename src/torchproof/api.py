"""The product as functions: each takes a target and returns a saved run."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchproof import measure, questions, store
from torchproof.capture import observe
from torchproof.checking import check as check
from torchproof.checking.counts import counts_of as counts_of
from torchproof.options import Options
from torchproof.questions import Questions
from torchproof.records import Observation, Run, UserError
from torchproof.target import Target, assert_size
from torchproof.target import parse as parse_target
from torchproof.tuning import Asked as Asked
from torchproof.tuning import tune as tune
from torchproof.tuning.objectives import Objective as Objective

if TYPE_CHECKING:
    from torchproof import deploy, repro
    from torchproof.packs import Made

Progress = Callable[[str], None]


def bench(
    target: str | Target,
    options: Options | None = None,
    *,
    asked: Questions | None = None,
    seconds: float | None = None,
    sittings: int | None = None,
    profile: bool = False,
    progress: Progress = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    """What compiling the target is worth; the run is saved and returned."""
    target = parse_target(target) if isinstance(target, str) else target
    options, asked = options or Options(), asked or Questions()
    _assert_measurable(target, options)
    _assert_as_written(target, options, asked, bool(profile or sittings))
    store.assert_writable(save_in)
    started = datetime.datetime.now()
    plan = replace(
        _plan(target, options, asked),
        profiles=profile,
        seconds=seconds or measure.Plan.seconds,
        sittings=sittings or measure.Plan.sittings,
    )
    counts = _counted(target, options, progress)
    with store.scratch(save_in) as folder:
        found = measure.measure(plan, folder, progress)
        run = Run(
            id=f"{started:%Y%m%d-%H%M}-{target.name}",
            target=target.text,
            strategy=", ".join(dict.fromkeys(row.strategy for row in found.rows)),
            environment=found.environment,
            counts=counts,
            measurements=found.rows,
            verb="bench",
            command=command,
            started=started.isoformat(timespec="seconds"),
            ending=found.ending,
            exit_code=found.exit_code,
            error=found.error,
        )
        return store.save(run, save_in, folder)


def _counted(
    target: Target, options: Options, progress: Progress
) -> dict[str, int | None]:
    """Breaks and recompiles of a plain run; a script is not run for that as well."""
    nothing = dict.fromkeys(counts_of(Observation((), {})))
    if target.kind == "script":
        return nothing
    seen = observe(target, options, progress)
    if seen.ending == "interrupted":
        raise KeyboardInterrupt
    whole = seen.ending == "finished" and not seen.error
    return counts_of(seen) if whole else nothing


def _plan(target: Target, options: Options, asked: Questions) -> measure.Plan:
    if asked.ablate:
        changes = questions.settled(asked.ablate, measure.switches())
        asked = replace(asked, ablate=changes)
    arms = questions.arms(asked, options.compile)
    return measure.Plan(
        target,
        measure.AS_WRITTEN if options.as_written else arms,
        by_default=not asked.names_arms,
        shapes=asked.shapes,
        train=options.train,
        device=options.device,
        size=options.size,
        timeout_s=options.timeout_s,
        quiet=options.quiet,
    )


def _assert_measurable(target: Target, options: Options) -> None:
    if target.kind in {"source", "trace"}:
        what = "a folder" if target.kind == "source" else "a trace"
        raise UserError(
            f"{target.text} is {what}: bench needs a workload, a factory or a script"
        )
    assert_size(target, options.size)


def _assert_as_written(
    target: Target, options: Options, asked: Questions, more: bool
) -> None:
    """A script decides itself what it compiles, with which data, and where."""
    if options.as_written and (asked.names_arms or asked.dtypes):
        raise UserError(
            "--as-written measures the target against itself in eager: leave out"
            " --strategies and other flags that name what to compile"
        )
    given = {**vars(options), **vars(asked), "profile or --sittings": more}
    for name, value in given.items() if target.kind == "script" else ():
        if value and name not in {"as_written", "timeout_s", "quiet"}:
            flag = {"dtypes": "dtype"}.get(name, name)
            raise UserError(
                f"{target.text} is a script and measured as it is written: --{flag} is"
                " for workloads and factories"
            )


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
