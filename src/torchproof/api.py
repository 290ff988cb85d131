"""The product as functions: one per verb, such as `check`, `bench` and `loadtest`.

Each takes a target or saved runs and returns a record. The command line is built on
this module alone; what a verb needs is imported when it is called.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, cast

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
    Finding,
    PartState,
    Run,
    UserError,
    store,
)
from torchproof.records.lazy import lazy_exports
from torchproof.records.load_options import LoadOptions as LoadOptions
from torchproof.records.load_options import TextOptions as TextOptions
from torchproof.records.load_options import read_objective as read_objective
from torchproof.records.objective import Objective as Objective
from torchproof.records.options import BenchOptions as BenchOptions
from torchproof.records.options import CheckOptions as CheckOptions
from torchproof.records.options import DeployOptions as DeployOptions
from torchproof.records.options import FixOptions as FixOptions
from torchproof.records.options import Options as Options
from torchproof.records.options import RankOptions as RankOptions
from torchproof.records.options import ReproOptions as ReproOptions
from torchproof.records.options import TuneOptions as TuneOptions

if TYPE_CHECKING:
    from torchproof.doctor import examine as examine
    from torchproof.fixing import deliver_saved as deliver_saved
    from torchproof.measure import Comparison as Comparison
    from torchproof.measure import Thresholds as Thresholds
    from torchproof.measure import assert_comparable as assert_comparable
    from torchproof.measure import compare as compare
    from torchproof.observe import ExistingLaunch as ExistingLaunch
    from torchproof.observe import Ranks as Ranks
    from torchproof.observe import Recorder as Recorder
    from torchproof.observe import assert_launchable as assert_launchable
    from torchproof.observe import record_timeline as record_timeline
    from torchproof.packs import PackResult as PackResult
    from torchproof.packs import Unverified as Unverified
    from torchproof.packs import inspect as inspect
    from torchproof.packs import is_pack as is_pack
    from torchproof.packs import read_key as read_key
    from torchproof.targets import WORKLOADS as WORKLOADS
    from torchproof.targets import Target as Target
    from torchproof.targets import own_file as own_file
    from torchproof.targets import parse as parse
else:
    __getattr__, __all__ = lazy_exports(__name__)
    __all__ += ["bench", "check", "fix", "loadtest", "pack", "tune"]

Progress = Callable[[str], None]
_Kind = TypeVar("_Kind")
_P = ParamSpec("_P")
_Arguments = dict[str, Any]  # of a call, by keyword


@dataclass(frozen=True, kw_only=True)
class _Keywords(Options):
    """The keywords of all verbs: the fields of `Options`, and where to save."""

    options: Options | None = None
    command: str = ""
    save_in: Path = store.RUNS


@dataclass(frozen=True, kw_only=True)
class _ReportedKeywords(_Keywords):
    progress: Progress = lambda text: None


@dataclass(frozen=True, kw_only=True)
class _CheckKeywords(_ReportedKeywords, CheckOptions):
    ranks: Ranks | None = None
    entering: Callable[[PartState], None] = lambda part: None


@dataclass(frozen=True, kw_only=True)
class _BenchKeywords(_ReportedKeywords, BenchOptions):
    bench_options: BenchOptions | None = None


@dataclass(frozen=True, kw_only=True)
class _FixKeywords(_ReportedKeywords, FixOptions):
    fix_options: FixOptions | None = None


@dataclass(frozen=True, kw_only=True)
class _TuneKeywords(_Keywords, TuneOptions):
    tune_options: TuneOptions | None = None
    recipe_file: str | Path | None = None
    overwrite: bool = False
    watcher: Any = None


@dataclass(frozen=True, kw_only=True)
class _LoadKeywords(_ReportedKeywords, LoadOptions):
    load_options: LoadOptions | None = None


KEYWORDS: dict[str, type[_Keywords]] = {}  # of each verb, as a record


class _Verb(Protocol[_P]):
    """A verb: the run of a target with the keywords that the record has as fields."""

    def __call__(
        self, target: Any, calls: Any = None, *args: _P.args, **keywords: _P.kwargs
    ) -> Run: ...


def _verb(keywords: Callable[_P, Any]) -> Callable[[Callable[..., Run]], _Verb[_P]]:
    """Makes a verb of a function of a target, its options and the other arguments."""
    record = cast("type[_Keywords]", keywords)
    known = {each.name: each for each in fields(record)}

    def decorated(function: Callable[..., Run]) -> _Verb[_P]:
        name = function.__name__
        KEYWORDS[name] = record

        @functools.wraps(
            function, ("__module__", "__name__", "__qualname__", "__doc__")
        )
        def verb(
            target: Any,
            calls: Any = None,
            options: Options | None = None,
            **arguments: Any,
        ) -> Run:
            for word in arguments.keys() - known.keys():
                raise TypeError(f"{name}() got an unexpected keyword argument {word!r}")
            with _resolved(target, calls, options, arguments) as (resolved, options):
                run = functools.partial(function, resolved, options, arguments)
                return _ended(run, resolved, arguments, verb=name)

        verb.__signature__ = _signature(verb, known.values())  # type: ignore[attr-defined]
        return cast("_Verb[_P]", verb)

    return decorated


def _signature(verb: Callable[..., Run], keywords: Iterable[Field[Any]]) -> Signature:
    """The signature with the keywords in place of `**`."""
    own = signature(verb, follow_wrapped=False)
    *parameters, _ = own.parameters.values()
    for each in keywords:
        factory = each.default_factory
        default = each.default if factory is MISSING else factory()
        parameter = Parameter(
            each.name, Parameter.KEYWORD_ONLY, default=default, annotation=each.type
        )
        if each.name not in own.parameters:
            parameters.append(parameter)
    return own.replace(parameters=parameters)


@_verb(_CheckKeywords)
def check(target: Target, options: Options, arguments: _Arguments) -> Run:
    """Checks how a target compiles; saves and returns the run.

    `target` is the name of a target, or a module or function with its `calls`: a list
    of tuples or dicts, one example, or a DataLoader.
    """
    return checking.check(target, options, draft=_drafted, **arguments)


def _drafted(findings: Sequence[Finding], matched: Sequence[Any]) -> Sequence[Finding]:
    """The findings with drafts of edits; a run without findings imports nothing."""
    is_open = any(finding.status == "open" for finding in findings)
    return fixing.drafted(findings, matched) if is_open else findings


@_verb(_FixKeywords)
def fix(target: Target, options: Options, arguments: _Arguments) -> Run:
    """Finds edits that cure findings of a target, proves them, saves the run.

    Takes the same targets as `check`.
    """
    _assert_sent(target, "fix")
    _set_options(arguments, "fix_options", FixOptions)
    return fixing.fix(target, options, **arguments)


@_verb(_TuneKeywords)
def tune(target: Target, options: Options, arguments: _Arguments) -> Run:
    """Searches for the fastest safe recipe; saves the run and returns it.

    Takes the same targets as `check`.
    """
    _assert_sent(target, "tune")
    _set_options(arguments, "tune_options", TuneOptions)
    return tuning.tune(target, options, **arguments)


@_verb(_BenchKeywords)
def bench(target: Target, options: Options, arguments: _Arguments) -> Run:
    """What compiling a target is worth; the run is saved and returned.

    Takes the same targets as `check`. `effort`, `seconds` and `repeats` limit the time,
    `profile` adds profiles.
    """
    _assert_sent(target, "bench")
    _set_options(arguments, "bench_options", BenchOptions)
    return _bench(target, options, **arguments)


@_verb(_LoadKeywords)
def loadtest(target: Target, options: Options, arguments: _Arguments) -> Run:
    """What users of the target wait for under load; the run is saved and returned.

    Takes the same targets as `check`.
    """
    _assert_sent(target, "loadtest")
    _set_options(arguments, "load_options", LoadOptions)
    return _loadtest(target, options, **arguments)


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
    target: Any, calls: Any, options: Options | None, arguments: _Arguments
) -> Iterator[tuple[Target, Options]]:
    """The target with its options, which are taken out of `arguments`.

    The options may also come second, where the name of a target needs no calls.
    """
    if isinstance(calls, Options):
        calls, options = None, calls
    options = replace(options or Options(), **_named(Options, arguments))
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


def _named(kind: Any, arguments: _Arguments) -> _Arguments:
    """The fields of a record among the keywords, which are taken out."""
    names = [each.name for each in fields(kind) if each.name in arguments]
    return {name: arguments.pop(name) for name in names}


def _set_options(arguments: _Arguments, name: str, kind: Any) -> None:
    """Sets the options of a verb: a record, with its fields among the keywords."""
    options, own = arguments.pop(name, None), _named(kind, arguments)
    arguments[name] = replace(options, **own) if options else kind(**own)


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
    progress: Progress = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    _assert_measurable(target, options)
    measure.assert_on_ranks(target, bench_options.ranks, bench_options.wrap)
    _assert_as_written(target, options, bench_options)
    sampling = _sampling(bench_options)
    store.assert_writable(save_in)
    started = datetime.datetime.now()
    plan = replace(
        _plan(target, options, bench_options),
        profiles=bench_options.profile,
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


def _sampling(options: BenchOptions) -> measure.bench_plan.Sampling:
    """What the effort means, but for what is given."""
    usual = measure.bench_plan.sampling(options.effort)
    seconds, repeats = options.seconds, options.repeats
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
    target: Target, options: Options, bench_options: BenchOptions
) -> None:
    """A script decides itself what it compiles, with which data, and where."""
    if options.as_written and (bench_options.names_strategies or bench_options.dtypes):
        raise UserError(
            "--as-written measures the target against itself in eager: leave out"
            " --strategies and other flags that name what to compile"
        )
    fitting = ("as_written", "timeout_s", "quiet", "seconds")
    targets.assert_as_written(target, *fitting, records=[options, bench_options])


def pack(
    what: str | Target | Run,
    options: Options | None = None,
    *,
    purpose: Literal["repro", "deploy"],
    pack_options: ReproOptions | DeployOptions | None = None,
    dest: str | Path | None = None,
    overwrite: bool = False,
    effort: str | None = None,
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
    options = options or Options()
    output: dict[str, Any] = {
        "progress": progress,
        "command": command,
        "dest": dest and Path(dest),
        "overwrite": overwrite,
    }
    if purpose == "deploy":
        if isinstance(what, Run):
            raise UserError(f"{what.id} is a run: pack --for deploy takes a target")
        deploy_options = _options(pack_options, DeployOptions)
        return packs.deploy.pack(what, options, deploy_options, **output)
    repro_options = _options(pack_options, ReproOptions)
    if isinstance(what, Run):
        subject = _saved_failure(what, options)
    else:
        run = check(
            what,
            options=options,
            effort=effort or repro_options.effort,
            select=tuple(each.partition("@")[0] for each in repro_options.select),
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
    options = Options(**settings, timeout_s=now.timeout_s, quiet=now.quiet)
    return packs.repro.Subject(run, target, options)
