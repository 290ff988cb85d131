"""The product as functions: one per verb, such as `check`, `bench` and `loadtest`.

Each takes a target or saved runs and returns a record. The command line is built on
this module alone; what a verb needs is imported when it is called.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack

from torchproof import (
    checking,
    fixing,
    measure,
    observe,
    packs,
    report,
    targets,
    tuning,
)
from torchproof.records import (
    COUNTS,
    SHOWN,
    PartState,
    Run,
    UserError,
    store,
)
from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.doctor import examine as examine
    from torchproof.fixing import FixOptions as FixOptions
    from torchproof.fixing import deliver_saved as deliver_saved
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
    from torchproof.observe import Recorder as Recorder
    from torchproof.observe import assert_launchable as assert_launchable
    from torchproof.observe import record_timeline as record_timeline
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
    from torchproof.targets import own_file as own_file
    from torchproof.targets import parse as parse
    from torchproof.tuning import Objective as Objective
    from torchproof.tuning import TuneOptions as TuneOptions
else:
    __getattr__, __all__ = lazy_exports(__name__)
    __all__ += ["bench", "check", "fix", "loadtest", "pack", "tune"]

Progress = Callable[[str], None]
_Kind = TypeVar("_Kind")


class Settings(TypedDict, total=False):
    """The keywords that all verbs take: the fields of `Options`, and where to save."""

    compile: Mapping[str, Any]
    as_written: bool
    train: bool
    device: str | None
    size: str | None
    timeout_s: float | None
    quiet: bool
    overlay: str | None
    command: str
    save_in: Path


class CheckKeywords(Settings, total=False):
    """The keywords of `check`."""

    effort: str
    skip: Iterable[str]
    select: Iterable[str]
    ignore: Iterable[str]
    baseline: Run | str | None
    ranks: Ranks | None
    progress: Progress
    entering: Callable[[PartState], None]


class BenchKeywords(Settings, total=False):
    """The keywords of `bench`: also the fields of `BenchOptions`."""

    bench_options: BenchOptions
    effort: str
    seconds: float | None
    repeats: int | None
    steps_only: bool
    profile: bool
    progress: Progress
    strategies: tuple[str, ...]
    modes: bool
    latency: bool
    guards: bool
    ablate: tuple[tuple[str, Any], ...]
    batch: tuple[int, ...]
    sequence: tuple[int, ...]
    backends: tuple[str, ...]
    dtypes: tuple[str, ...]
    ranks: int | None
    wrap: str | None


class TuneKeywords(Settings, total=False):
    """The keywords of `tune`: also the fields of `TuneOptions`."""

    tune_options: TuneOptions
    recipe_file: str | Path | None
    overwrite: bool
    watcher: Any
    objective: Objective
    budget_s: float
    effort: str
    least: float
    names: tuple[str, ...]
    resume: bool
    ray: str | None
    ranks: int | None
    wrap: str | None


class FixKeywords(Settings, total=False):
    """The keywords of `fix`: also the fields of `FixOptions`."""

    fix_options: FixOptions
    progress: Progress
    effort: str
    unsafe: bool
    select: tuple[str, ...]
    write: bool
    patch: str | os.PathLike[str] | None


class LoadKeywords(Settings, total=False):
    """The keywords of `loadtest`."""

    load_options: LoadOptions
    progress: Progress


def check(
    target: Any,
    calls: Any = None,
    options: Options | None = None,
    **keywords: Unpack[CheckKeywords],
) -> Run:
    """Checks how a target compiles; saves and returns the run.

    `target` is the name of a target, or a module or function with its `calls`: a list
    of tuples or dicts, one example, or a DataLoader.
    """
    arguments: dict[str, Any] = {**keywords}
    with _resolved(target, calls, options, arguments) as (resolved, options):
        run = functools.partial(checking.check, resolved, options, **arguments)
        return _ended(run, resolved, arguments, verb="check")


def fix(
    target: Any,
    calls: Any = None,
    options: Options | None = None,
    **keywords: Unpack[FixKeywords],
) -> Run:
    """Finds edits that cure findings of a target, proves them, saves the run.

    Takes the same targets as `check`.
    """
    arguments: dict[str, Any] = {**keywords}
    with _resolved(target, calls, options, arguments) as (resolved, options):
        _assert_sent(resolved, "fix")
        _set_options(arguments, "fix_options", fixing.FixOptions)
        run = functools.partial(fixing.fix, resolved, options, **arguments)
        return _ended(run, resolved, arguments, verb="fix")


def tune(
    target: Any,
    calls: Any = None,
    options: Options | None = None,
    **keywords: Unpack[TuneKeywords],
) -> Run:
    """Searches for the fastest safe recipe; saves the run and returns it.

    Takes the same targets as `check`.
    """
    arguments: dict[str, Any] = {**keywords}
    with _resolved(target, calls, options, arguments) as (resolved, options):
        _assert_sent(resolved, "tune")
        _set_options(arguments, "tune_options", tuning.TuneOptions)
        run = functools.partial(tuning.tune, resolved, options, **arguments)
        return _ended(run, resolved, arguments, verb="tune")


def bench(
    target: Any,
    calls: Any = None,
    options: Options | None = None,
    **keywords: Unpack[BenchKeywords],
) -> Run:
    """What compiling a target is worth; the run is saved and returned.

    Takes the same targets as `check`. `effort`, `seconds` and `repeats` limit the time,
    `profile` adds profiles.
    """
    arguments: dict[str, Any] = {**keywords}
    with _resolved(target, calls, options, arguments) as (resolved, options):
        _assert_sent(resolved, "bench")
        _set_options(arguments, "bench_options", measure.BenchOptions)
        run = functools.partial(_bench, resolved, options, **arguments)
        return _ended(run, resolved, arguments, verb="bench")


def loadtest(
    target: Any,
    calls: Any = None,
    options: Options | None = None,
    **keywords: Unpack[LoadKeywords],
) -> Run:
    """What users of the target wait for under load; the run is saved and returned.

    Takes the same targets as `check`.
    """
    arguments: dict[str, Any] = {**keywords}
    with _resolved(target, calls, options, arguments) as (resolved, options):
        _assert_sent(resolved, "loadtest")
        run = functools.partial(_loadtest, resolved, options, **arguments)
        return _ended(run, resolved, arguments, verb="loadtest")


def interrupted_run(error: KeyboardInterrupt) -> Run | None:
    """The run that a verb saved before it let Ctrl-C end the program."""
    return getattr(error, "run", None)


def _ended(
    make: Callable[[], Run], target: Target, arguments: Mapping[str, Any], *, verb: str
) -> Run:
    """The run of a verb. Ctrl-C is raised again, once what exists is saved."""
    started = datetime.datetime.now()
    try:
        run = make()
    except KeyboardInterrupt as error:
        nothing = Run(
            id=f"{started:%Y%m%d-%H%M}-{target.name}",
            target=target.text,
            strategy="-",
            environment={"torch": None, "device": None},
            counts=dict.fromkeys(COUNTS),
            verb=verb,
            command=arguments.get("command", ""),
            started=started.isoformat(timespec="seconds"),
            ending="interrupted",
        )
        saved = store.save(nothing, arguments.get("save_in", store.RUNS))
        raise _with_run(error, saved) from None
    if run.ending == "interrupted":
        raise _with_run(KeyboardInterrupt(), run)
    return run


def _with_run(error: KeyboardInterrupt, run: Run) -> KeyboardInterrupt:
    """The error with the run. A subclass would change a program's exit status."""
    error.run = run  # type: ignore[attr-defined]
    error.add_note(f"torchproof saved what exists: torchproof show {run.id}")
    return error


@contextlib.contextmanager
def _resolved(
    target: Any, calls: Any, options: Options | None, arguments: dict[str, Any]
) -> Iterator[tuple[Target, Options]]:
    """The target with its options, which are taken out of `arguments`.

    The options may also come second, where the name of a target needs no calls.
    """
    if isinstance(calls, targets.Options):
        calls, options = None, calls
    options = replace(
        options or targets.Options(), **_named(targets.Options, arguments)
    )
    if isinstance(target, str | os.PathLike | targets.Target):
        if calls is not None:
            raise UserError(
                f"{target} has its own calls: leave out the second argument"
            )
        if not isinstance(target, targets.Target):
            target = targets.parse(os.fspath(target))
        yield target, options
        return
    if calls is None:
        name = getattr(target, "__name__", type(target).__name__)
        raise UserError(
            f"{name} needs calls: pass them as well, as in check(model, [(x,)])"
        )
    with targets.live.sent(target, calls) as sent:
        yield sent, options


def _shown_in_cell(run: Run) -> str:
    """The run as the output of a notebook cell, with new texts of cells."""
    try:
        texts = fixing.cell_texts(run) if run.verb == "fix" else {}
    except UserError:  # the cells of another session
        texts = {}
    cells = {
        os.path.basename(path): targets.live.as_typed(path, *both)
        for path, both in texts.items()
    }
    return report.render_cell(run, cells)


SHOWN["html"] = _shown_in_cell
SHOWN["text"] = lambda run: report.render(run, "text")


def _named(kind: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record among the keywords, which are taken out."""
    names = [each.name for each in fields(kind) if each.name in arguments]
    return {name: arguments.pop(name) for name in names}


def _set_options(arguments: dict[str, Any], name: str, kind: Any) -> None:
    """Sets the options of a verb: a record, with its fields among the keywords."""
    options = arguments.pop(name, None) or kind()
    arguments[name] = replace(options, **_named(kind, arguments))


def _assert_sent(target: Target, verb: str) -> None:
    if why := targets.live.why_not_sent(target):
        raise UserError(
            f"{why}; {verb} needs child processes, torchproof.check does not"
        )


def _bench(
    target: Target,
    options: Options,
    *,
    bench_options: BenchOptions,
    effort: str = "normal",
    seconds: float | None = None,
    repeats: int | None = None,
    profile: bool = False,
    progress: Progress = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    _assert_measurable(target, options)
    measure.assert_on_ranks(target, bench_options.ranks, bench_options.wrap)
    more = {"effort": effort != "normal", "profile or --repeats": profile or repeats}
    _assert_as_written(target, options, bench_options, more)
    sampling = _sampling(effort, seconds, repeats)
    store.assert_writable(save_in)
    started = datetime.datetime.now()
    plan = replace(
        _plan(target, options, bench_options),
        profiles=profile,
        seconds=sampling.seconds,
        repeats=sampling.repeats,
    )
    # A plain run, in one process, could not join the ranks' collectives.
    alone = bench_options.ranks is None and target.kind != "script"
    counted = alone and not bench_options.steps_only
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


def _sampling(
    effort: str, seconds: float | None, repeats: int | None
) -> bench_plan.Sampling:
    """What the effort means, but for what is given."""
    usual = measure.bench_plan.sampling(effort)
    for name, value in (("seconds", seconds), ("repeats", repeats)):
        if value is not None and value <= 0:
            raise UserError(f"{name}={value}: give a positive number")
    return measure.bench_plan.Sampling(
        usual.seconds if seconds is None else seconds,
        usual.repeats if repeats is None else repeats,
    )


def _counted(
    target: Target, options: Options, progress: Progress
) -> dict[str, int | None]:
    """Breaks and recompiles of a plain run."""
    observation = observe.observe(target, options, progress)
    if observation.ending == "interrupted":  # nothing is measured yet
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
        train=options.train,
        device=options.device,
        size=options.size,
        timeout_s=options.timeout_s,
        quiet=options.quiet,
        ranks=bench_options.ranks,
        wrap=bench_options.wrap,
        first_calls=not bench_options.steps_only,
    )


def _loadtest(
    target: Target,
    options: Options,
    *,
    load_options: LoadOptions,
    progress: Progress = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
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
    return store.save(checking.rules.with_texts(run), save_in)


def _assert_servable(target: Target, options: Options) -> None:
    if target.kind == "script":
        raise UserError(
            f"{target.text} is a script, and loadtest serves the calls of a factory:"
            f" {targets.instead_of_script(target, 'loadtest')}"
        )
    if not target.can_run_again:
        raise UserError(
            f"{target.text} is a {target.form}: loadtest needs a workload or a factory,"
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
    target: Target,
    options: Options,
    bench_options: BenchOptions,
    more: Mapping[str, Any],
) -> None:
    """A script decides itself what it compiles, with which data, and where."""
    if options.as_written and (bench_options.names_strategies or bench_options.dtypes):
        raise UserError(
            "--as-written measures the target against itself in eager: leave out"
            " --strategies and other flags that name what to compile"
        )
    settings = {**vars(options), **vars(bench_options), **more}
    for name, value in settings.items() if target.kind == "script" else ():
        if value and name not in {"as_written", "timeout_s", "quiet"}:
            flag = {"dtypes": "dtype"}.get(name, name).replace("_", "-")
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
    _assert_packable(what)
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
        run = check(
            what,
            options=options,
            effort=effort,
            select=[code.partition("@")[0] for code in repro_options.select],
            progress=progress,
            command=command,
            save_in=save_in,
        )
        subject = packs.repro.Subject(run, what, options, has_run=True)
    with _named_on_interrupt(subject.run):
        return packs.repro.pack(subject, repro_options, **output)


@contextlib.contextmanager
def _named_on_interrupt(run: Run) -> Iterator[None]:
    """Adds a saved run to the error of Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise _with_run(error, run) from None


def _options(given: Any, kind: type[_Kind]) -> _Kind:
    """The options if they are of this kind, otherwise the defaults."""
    return given if isinstance(given, kind) else kind()


def _assert_packable(what: Any) -> None:
    if not isinstance(what, targets.Target | Run):
        raise UserError(
            f"a {type(what).__name__} cannot be packed: write a factory that returns it"
            " with its calls, and pack FILE.py:FACTORY"
        )


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
