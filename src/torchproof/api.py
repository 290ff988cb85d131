"""The product as functions: one per verb, such as `check`, `bench` and `loadtest`.

Each takes a target or saved runs and returns a record. The command line is built on
this module alone; what a verb needs is imported when it is called.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torchproof import checking, measure, observe, packs, targets
from torchproof.records import COUNTS, Run, UserError, store
from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.checking import check as check
    from torchproof.doctor import examine as examine
    from torchproof.fixing import FixOptions as FixOptions
    from torchproof.fixing import deliver_saved as deliver_saved
    from torchproof.fixing import fix as fix
    from torchproof.measure import BenchOptions as BenchOptions
    from torchproof.measure import Comparison as Comparison
    from torchproof.measure import LoadOptions as LoadOptions
    from torchproof.measure import TextOptions as TextOptions
    from torchproof.measure import Thresholds as Thresholds
    from torchproof.measure import assert_comparable as assert_comparable
    from torchproof.measure import bench_plan as bench_plan
    from torchproof.measure import compare as compare
    from torchproof.measure import read_duration as read_duration
    from torchproof.measure import read_objective as read_objective
    from torchproof.measure import read_range as read_range
    from torchproof.observe import ExistingLaunch as ExistingLaunch
    from torchproof.observe import RankOptions as RankOptions
    from torchproof.observe import Ranks as Ranks
    from torchproof.observe import assert_launchable as assert_launchable
    from torchproof.packs import DeployOptions as DeployOptions
    from torchproof.packs import PackResult as PackResult
    from torchproof.packs import ReproOptions as ReproOptions
    from torchproof.packs import Unverified as Unverified
    from torchproof.packs import inspect as inspect
    from torchproof.packs import is_pack as is_pack
    from torchproof.packs import read_key as read_key
    from torchproof.targets import WORKLOADS as WORKLOADS
    from torchproof.targets import Options as Options
    from torchproof.targets import Target as Target
    from torchproof.targets import parse as parse
    from torchproof.tuning import Objective as Objective
    from torchproof.tuning import TuneOptions as TuneOptions
    from torchproof.tuning import tune as tune
else:
    __getattr__, __all__ = lazy_exports(__name__)
    __all__ += ["bench", "loadtest", "pack"]

Progress = Callable[[str], None]
_Kind = TypeVar("_Kind")


def bench(
    target: str | Target,
    options: Options | None = None,
    *,
    bench_options: BenchOptions | None = None,
    seconds: float | None = None,
    repeats: int | None = None,
    profile: bool = False,
    progress: Progress = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    """What compiling the target is worth; the run is saved and returned."""
    target = targets.parse(target) if isinstance(target, str) else target
    options = options or targets.Options()
    bench_options = bench_options or measure.BenchOptions()
    _assert_measurable(target, options)
    measure.assert_on_ranks(target, bench_options.ranks, bench_options.wrap)
    _assert_as_written(target, options, bench_options, bool(profile or repeats))
    store.assert_writable(save_in)
    started = datetime.datetime.now()
    plan = replace(
        _plan(target, options, bench_options),
        profiles=profile,
        seconds=seconds or measure.Plan.seconds,
        repeats=repeats or measure.Plan.repeats,
    )
    # A plain run, in one process, could not join the ranks' collectives.
    counted = bench_options.ranks is None and target.kind != "script"
    counts = _counted(target, options, progress) if counted else dict.fromkeys(COUNTS)
    with store.scratch(save_in) as folder:
        result = measure.measure(plan, folder, progress)
        run = Run(
            id=f"{started:%Y%m%d-%H%M}-{target.name}",
            target=target.text,
            strategy=", ".join(dict.fromkeys(row.strategy for row in result.rows)),
            environment=result.environment,
            counts=counts,
            measurements=result.rows,
            verb="bench",
            command=command,
            started=started.isoformat(timespec="seconds"),
            ending=result.ending,
            exit_code=result.exit_code,
            error=result.error,
        )
        return store.save(run, save_in, folder)


def _counted(
    target: Target, options: Options, progress: Progress
) -> dict[str, int | None]:
    """Breaks and recompiles of a plain run."""
    observation = observe.observe(target, options, progress)
    if observation.ending == "interrupted":
        raise KeyboardInterrupt
    whole = observation.ending == "finished" and not observation.error
    return checking.counts_of(observation) if whole else dict.fromkeys(COUNTS)


def _plan(
    target: Target, options: Options, bench_options: BenchOptions
) -> measure.Plan:
    if bench_options.ablate:
        changes = measure.bench_plan.resolve_ablation(
            bench_options.ablate, measure.switches()
        )
        bench_options = replace(bench_options, ablate=changes)
    specs = measure.bench_plan.strategy_specs(bench_options, options.compile)
    return measure.Plan(
        target,
        measure.AS_WRITTEN if options.as_written else specs,
        by_default=not bench_options.names_strategies,
        shapes=bench_options.shapes,
        energy=True,
        train=options.train,
        device=options.device,
        size=options.size,
        timeout_s=options.timeout_s,
        quiet=options.quiet,
        ranks=bench_options.ranks,
        wrap=bench_options.wrap,
    )


def loadtest(
    target: str | Target,
    options: Options | None = None,
    *,
    load_options: LoadOptions,
    progress: Progress = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    """What users of the target wait for under load; the run is saved and returned."""
    target = targets.parse(target) if isinstance(target, str) else target
    options = options or targets.Options()
    _assert_servable(target, options)
    store.assert_writable(save_in)
    started = datetime.datetime.now()
    plan = measure.loadtest.LoadPlan.of(
        target,
        load_options,
        compile_arguments=options.compile,
        as_written=options.as_written,
        device=options.device,
        size=options.size,
        timeout_s=options.timeout_s,
        quiet=options.quiet,
    )
    result = measure.loadtest.run_load_test(plan, progress)
    run = Run(
        id=f"{started:%Y%m%d-%H%M}-{target.name}",
        target=target.text,
        strategy=", ".join(each.strategy for each in result.test.results),
        environment=result.environment,
        counts=dict.fromkeys(COUNTS),
        findings=tuple(checking.check_load(result.test)),
        load_test=result.test,
        verb="loadtest",
        command=command,
        started=started.isoformat(timespec="seconds"),
        ending=result.ending,
        error=result.error,
    )
    return store.save(run, save_in)


def _assert_servable(target: Target, options: Options) -> None:
    if target.kind not in {"workload", "factory"}:
        raise UserError(
            f"{target.text} is a {target.kind}: loadtest needs a workload or a factory,"
            " whose calls become requests"
        )
    if options.train:
        raise UserError("loadtest serves requests: leave out --train")
    targets.assert_size(target, options.size)


def _assert_measurable(target: Target, options: Options) -> None:
    if target.kind in {"source", "trace"}:
        what = "a folder" if target.kind == "source" else "a trace"
        raise UserError(
            f"{target.text} is {what}: bench needs a workload, a factory or a script"
        )
    targets.assert_size(target, options.size)


def _assert_as_written(
    target: Target, options: Options, bench_options: BenchOptions, more: bool
) -> None:
    """A script decides itself what it compiles, with which data, and where."""
    if options.as_written and (bench_options.names_strategies or bench_options.dtypes):
        raise UserError(
            "--as-written measures the target against itself in eager: leave out"
            " --strategies and other flags that name what to compile"
        )
    settings = {**vars(options), **vars(bench_options), "profile or --repeats": more}
    for name, value in settings.items() if target.kind == "script" else ():
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
    pack_options: ReproOptions | DeployOptions | None = None,
    dest: str | Path | None = None,
    overwrite: bool = False,
    effort: str = "normal",
    progress: Progress = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> PackResult:
    """Makes a pack and verifies it in a clean process; raises `Unverified` if it fails.

    `what` is a target. For a repro it can also be a saved run of `check`; otherwise the
    target is checked first.
    """
    if dest is not None:
        packs.assert_placeable(Path(dest), overwrite)
    what = targets.parse(what) if isinstance(what, str) else what
    options = options or targets.Options()
    output: dict[str, Any] = {
        "progress": progress,
        "command": command,
        "dest": dest and Path(dest),
        "overwrite": overwrite,
    }
    if purpose == "deploy":
        if isinstance(what, Run):
            raise UserError(f"{what.id} is a run: pack --for deploy takes a target")
        deploy_options = _options(pack_options, packs.DeployOptions)
        return packs.deploy.pack(what, options, deploy_options, **output)
    repro_options = _options(pack_options, packs.ReproOptions)
    if isinstance(what, Run):
        subject = _saved_failure(what, options)
    else:
        run = checking.check(
            what,
            options,
            effort=effort,
            select=[code.partition("@")[0] for code in repro_options.select],
            progress=progress,
            command=command,
            save_in=save_in,
        )
        subject = packs.repro.Subject(run, what, options, has_run=True)
    return packs.repro.pack(subject, repro_options, **output)


def _options(given: Any, kind: type[_Kind]) -> _Kind:
    """The options if they are of this kind, otherwise the defaults."""
    return given if isinstance(given, kind) else kind()


def _saved_failure(run: Run, now: Options) -> packs.repro.Subject:
    """The target of a saved check with its options; timeout and quiet are today's."""
    if run.verb != "check":
        raise UserError(f"{run.id} is a run of {run.verb}: a repro needs one of check")
    saved = dict(run.options)
    target = targets.parse(run.target, saved.get("arguments", ()))
    names = ("compile", "as_written", "train", "device", "size")
    settings = {name: saved[name] for name in names if name in saved}
    options = targets.Options(**settings, timeout_s=now.timeout_s, quiet=now.quiet)
    return packs.repro.Subject(run, target, options)
