"""`bench`: measure what compiling a target is worth, and save the run."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

from torchproof.measure import bench_plan
from torchproof.measure.bench_plan import Questions
from torchproof.measure.specs import AS_WRITTEN, Plan, Progress, measure, switches
from torchproof.observe import counts_of, observe
from torchproof.records import Observation, Run, UserError, store
from torchproof.targets import Options, Target, assert_size
from torchproof.targets import parse as parse_target


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
        seconds=seconds or Plan.seconds,
        sittings=sittings or Plan.sittings,
    )
    counts = _counted(target, options, progress)
    with store.scratch(save_in) as folder:
        found = measure(plan, folder, progress)
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


def _plan(target: Target, options: Options, asked: Questions) -> Plan:
    if asked.ablate:
        changes = bench_plan.settled(asked.ablate, switches())
        asked = replace(asked, ablate=changes)
    arms = bench_plan.arms(asked, options.compile)
    return Plan(
        target,
        AS_WRITTEN if options.as_written else arms,
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
