"""The command line: one function per verb. They print through `output`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import io
import os
import shlex
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torchproof.cli import flags, output, timelines
from torchproof.cli.loadtest_flags import loadtest_flags
from torchproof.cli.pack_flags import assert_fit, pack_flags
from torchproof.cli.tune_flags import tune_flags
from torchproof.records import (
    SEVERITIES,
    CauseTree,
    PartState,
    Run,
    UserError,
    document,
    line,
    store,
    unbroken,
    untested_torch,
)

if TYPE_CHECKING:
    from torchproof.api import (
        Comparison,
        ExistingLaunch,
        LoadOptions,
        Options,
        RankOptions,
        Ranks,
        Target,
        TextOptions,
    )


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """One line, exit code 2."""
        if message.endswith("expected one argument"):  # of --launcher --standalone
            message += "; write one that begins with a dash as --flag=VALUE"
        text = f"{self.prog}: error: {message} (see {self.prog} --help)"
        self.exit(2, f"{line(text)}\n")


Display = Callable[[Any], contextlib.AbstractContextManager[Any]]


def main(arguments: Sequence[str] | None = None, display: Any = None) -> int:
    """Runs a command line; `display` shows progress instead of a live table."""
    for stream in (sys.stdout, sys.stderr):  # the encoding may lack a character
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    options = parsed(list(sys.argv[1:] if arguments is None else arguments), display)
    try:
        if options.verb in (check, bench, loadtest, tune, fix, pack) and (
            text := untested_torch()
        ):
            output.note(f"note: {text}")
        code = int(options.verb(options))
        sys.stdout.flush()
        return code
    except UserError as error:
        if getattr(options, "verbose", False):
            for text in error.details.splitlines():
                output.note(text)
        output.note(f"torchproof: error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `torchproof rule | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a name that the disk cannot hold
        output.note(f"torchproof: error: {error}")
        return 2
    except Exception:  # exit code 1 would mean that there are findings
        traceback.print_exc()
        return 2


def parsed(words: list[str], display: Any = None) -> argparse.Namespace:
    """The options of a command line; a wrong one ends the process with 2."""
    cut = words.index("--") if "--" in words else len(words)
    options = _parser(*words[:1]).parse_args(words[:cut])
    options.script = words[cut + 1 :]  # arguments of the target, if it is a script
    options.command = shlex.join(["torchproof", *words])
    options.display = display
    return options


def _parser(first: str | None = None) -> argparse.ArgumentParser:
    """The parser of all verbs; of one alone if the first word names it.

    Building all of them takes longer than most verbs that print a saved run.
    """
    parser = _Parser(
        prog="torchproof",
        description=(
            "Makes torch.compile dependable: finds what goes wrong when a model"
            " compiles, measures what compiling is worth, and picks the fastest safe"
            " strategy."
        ),
        epilog="example: torchproof check workload:gpt-original",
    )
    from torchproof import __version__

    parser.add_argument(
        "--version", action="version", version=f"torchproof {__version__}"
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    known = {function.__name__: (function, *rest) for function, *rest in _verbs()}
    for verb, add_flags, example in [known[first]] if first in known else _verbs():
        add_flags(_verb(verbs, verb, example))
    return parser


def _verbs() -> tuple[tuple[Any, Callable[[argparse.ArgumentParser], None], str], ...]:
    """Each verb with its flags and an example."""
    return (
        (check, flags.check_flags, "torchproof check train.py -- --epochs 1"),
        (bench, flags.bench_flags, "torchproof bench workload:gpt --modes"),
        (
            loadtest,
            loadtest_flags,
            "torchproof loadtest workload:gpt --rate 20 --slo p99=50ms",
        ),
        (tune, tune_flags, "torchproof tune workload:gpt --budget 5m"),
        (fix, flags.fix_flags, "torchproof fix workload:nanovlm-original"),
        (pack, pack_flags, "torchproof pack train.py:make --for repro"),
        (compare, flags.compare_flags, "torchproof compare before.json after"),
        (show, flags.show_flags, "torchproof show --list"),
        (log, flags.log_flags, 'torchproof log plan "fix the breaks"'),
        (rule, flags.rule_flags, "torchproof rule GB101"),
        (mcp, flags.mcp_flags, "torchproof mcp --directory ~/project"),
        (doctor, flags.doctor_flags, "torchproof doctor --format md"),
        (completion, flags.completion_flags, 'eval "$(torchproof completion bash)"'),
    )


def _verb(verbs: Any, function: Any, example: str) -> argparse.ArgumentParser:
    text = function.__doc__
    parser: argparse.ArgumentParser = verbs.add_parser(
        function.__name__, help=text, description=text, epilog=f"example: {example}"
    )
    parser.set_defaults(verb=function)
    return parser


def check(options: argparse.Namespace) -> int:
    """Run a target and list what goes wrong when it compiles, where, and the fix."""
    if options.list:
        return _list_workloads(options)
    if options.target is None:
        raise UserError(
            "check needs a TARGET; torchproof check --list lists the workloads"
        )
    if options.watch:
        from torchproof.cli.watch import watch

        return watch(options)
    from torchproof import api

    launch = api.ExistingLaunch.current()
    if launch is not None:
        return _check_in_launch(options, launch)
    ranks = rank_options(options)
    if ranks is not None and ranks.spans_nodes:
        _become_launcher(options, ranks)
    return _check(options, ranks)


def _check(options: argparse.Namespace, ranks: Ranks | None) -> int:
    from torchproof import report

    output.assert_writable(options.output)
    output.assert_writable(options.trace, "--trace")
    baseline = store.load(options.baseline) if options.baseline else None
    purposes = timelines.purposes(options, on_ranks=ranks is not None)
    with timelines.recorded(purposes) as timeline:
        run = checked(options, timeline, ranks=ranks, baseline=baseline)
        output.show(run, options)
        if timeline is not None:
            timeline.write(run, options)
    if options.trace and ranks is not None:
        text, quiet = report.rank_trace.render(run), options.quiet
        output.write_file(options.trace, text, flag="--trace", quiet=quiet)
    return _exit_code(run, options)


def checked(
    options: argparse.Namespace,
    timeline: timelines.RunTimeline | None = None,
    entering: Callable[[PartState], None] = lambda part: None,
    **keywords: Any,
) -> Run:
    """The run of a check that a command line asks for, with its progress shown."""
    from torchproof import api

    shown: Display = contextlib.nullcontext
    if timeline is not None and options.live:
        shown = timeline.shown
    with output.progress(options) as progress, shown(progress):

        def enter(part: PartState) -> None:
            entering(part)
            progress.enter(part)
            if timeline is not None:
                timeline.enter(part)

        return api.check(
            api.parse(options.target, options.script),
            _run_options(options),
            effort=options.effort,
            skip=flags.names(options.skip),
            select=flags.names(options.select),
            ignore=flags.names(options.ignore),
            progress=progress,
            entering=enter,
            command=options.command,
            **keywords,
        )


def _check_in_launch(options: argparse.Namespace, launch: ExistingLaunch) -> int:
    """Checks as a rank of a launch: rank 0 reports, all end with its exit code."""
    from torchproof import api

    rank, of = launch.place.rank, launch.count
    launch = dataclasses.replace(launch, wrap=options.wrap)
    if rank != 0:
        with contextlib.suppress(UserError), output.progress(options):
            target = api.parse(options.target, options.script)
            return launch.take_part(target, _run_options(options))
        return 2  # rank 0 prints the error
    code = 2
    try:
        if options.ranks is not None or options.launcher:
            raise UserError(
                f"this process is rank {rank} of {of} already: leave out --ranks and"
                " --launcher"
            )
        code = _check(options, launch)
    finally:
        sys.stdout.flush()
        # The launcher ends all ranks when the first of them ends with this code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        launch.publish(code)
    return code


def _become_launcher(options: argparse.Namespace, ranks: RankOptions) -> NoReturn:
    """Replaces this process by torch's launcher, which starts a check on each rank.

    The launchers of all machines find each other; rank 0 reports for all.
    """
    from torchproof import api

    api.assert_launchable(api.parse(options.target, options.script), ranks)
    words = shlex.split(options.command)[1:]
    cut = words.index("--") if "--" in words else len(words)
    own = flags.without(words[:cut], "--ranks", "--launcher")
    launcher = [sys.executable, "-m", "torch.distributed.run", *ranks.command]
    command = [*launcher, "-m", "torchproof", *own, *words[cut:]]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def rank_options(options: argparse.Namespace) -> RankOptions | None:
    from torchproof import api

    if options.ranks is None:
        for flag in ("launcher", "wrap"):
            if getattr(options, flag):
                raise UserError(f"--{flag} is for several ranks: add --ranks N")
        return None
    try:
        launcher = tuple(shlex.split(options.launcher))
    except ValueError as error:
        raise UserError(f"--launcher: {error}") from None
    return api.RankOptions(options.ranks, launcher, options.wrap)


def bench(options: argparse.Namespace) -> int:
    """Measure strategies against eager: speed, compile time, memory, numerics."""
    from torchproof import api

    output.assert_writable(options.output)
    output.assert_writable(options.trace, "--trace")
    baseline = store.load(options.baseline) if options.baseline else None
    bench_options = api.BenchOptions(
        strategies=tuple(flags.names(options.strategies)),
        modes=options.modes,
        latency=options.latency,
        guards=options.guards,
        ablate=api.bench_plan.read_ablation(options.ablate),
        batch=api.bench_plan.read_sizes(options.batch, "--batch"),
        sequence=api.bench_plan.read_sizes(options.sequence, "--sequence"),
        backends=tuple(flags.names(options.backends)),
        dtypes=api.bench_plan.read_types(options.dtype),
        ranks=options.ranks,
        wrap=options.wrap,
    )
    with timelines.recorded(["trace"] if options.trace else []) as timeline:
        with output.progress(options) as progress:
            run = api.bench(
                api.parse(options.target, options.script),
                _run_options(options),
                bench_options=bench_options,
                effort=options.effort,
                seconds=options.seconds,
                repeats=options.repeats,
                profile=options.profile,
                progress=progress,
                command=options.command,
            )
        if timeline is not None:
            timeline.write(run, options)
    comparison = api.compare(baseline, run) if baseline else None
    output.show(run, options, comparison)
    failed = failed_code(run, options)
    if failed is not None:
        return failed
    return _comparison_code(comparison) if comparison else 0


def loadtest(options: argparse.Namespace) -> int:
    """Serve requests on a timetable: what users wait for under load, and why."""
    from torchproof import api, report

    output.assert_writable(options.output)
    output.assert_writable(options.trace, "--trace")
    load_options = _load_options(options)
    baseline = store.load(options.baseline) if options.baseline else None
    if baseline:
        api.assert_comparable(baseline, load_options)
    with output.progress(options) as progress:
        run = api.loadtest(
            api.parse(options.target, options.script),
            _run_options(options),
            load_options=load_options,
            progress=progress,
            command=options.command,
        )
    if options.trace:
        text, quiet = report.load_trace.render(run), options.quiet
        output.write_file(options.trace, text, flag="--trace", quiet=quiet)
    failed = failed_code(run, options)
    comparison = api.compare(baseline, run) if baseline and failed is None else None
    output.show(run, options, comparison)
    if failed is not None:
        return failed
    missed = _missed_objective(run)
    return missed or (_comparison_code(comparison) if comparison else 0)


def _load_options(options: argparse.Namespace) -> LoadOptions:
    from torchproof import api

    def seconds(name: str) -> float | None:
        text = getattr(options, name)
        flag = f"--{name.replace('_', '-')}"
        return None if text is None else api.read_duration(text, flag)

    return api.LoadOptions(
        rate=options.rate,
        arrivals=options.arrivals,
        duration_s=seconds("duration"),
        requests=options.requests,
        objective=api.read_objective(options.slo) if options.slo else None,
        strategies=tuple(flags.names(options.strategies)),
        find_rate=options.find_rate,
        batch_window_s=seconds("batch_window"),
        max_batch=options.max_batch,
        workers=options.workers,
        seed=options.seed,
        cold=not options.no_cold,
        text=_text_options(options),
    )


def _text_options(options: argparse.Namespace) -> TextOptions | None:
    """How to serve a text model; None if no flag asks for it."""
    from torchproof import api

    ranges: dict[str, Any] = {
        name: api.read_range(text, f"--{name.replace('_', '-')}")
        for name in ("prompt_tokens", "output_tokens")
        if (text := getattr(options, name)) is not None
    }
    others = {
        name: value
        for name in ("temperature", "slots", "queue_limit", "price")
        if (value := getattr(options, name)) is not None
    }
    if ranges:
        return api.TextOptions(**ranges, **others)
    if others:
        flag = f"--{next(iter(others)).replace('_', '-')}"
        raise UserError(f"{flag}: add --output-tokens, which serves a text model")
    return None


def _missed_objective(run: Run) -> int:
    """1 if every strategy that answered requests misses the objective."""
    results = run.load_test.results if run.load_test else ()
    verdicts = {result.verdict for result in results if result.answered}
    return int(verdicts == {"missed"})


def tune(options: argparse.Namespace) -> int:
    """Search for the fastest strategy with the same outputs; write a recipe."""
    from torchproof import api

    output.assert_writable(options.output)
    tune_options = api.TuneOptions(
        objective=api.Objective.parse(options.objective),
        budget_s=options.budget,
        effort=options.effort,
        least=options.min_gain,
        names=tuple(flags.names(options.strategies)),
        resume=options.resume,
        ray=options.ray,
        ranks=options.ranks,
        wrap=options.wrap,
    )
    with output.progress(options) as board:
        run = api.tune(
            api.parse(options.target, options.script),
            _run_options(options),
            tune_options=tune_options,
            recipe_file=options.recipe,
            overwrite=options.overwrite,
            watcher=board,
            command=options.command,
        )
    output.show(run, options)
    failed = failed_code(run, options)
    return (
        int(run.tuning is not None and run.tuning.chosen == "eager")
        if failed is None
        else failed
    )


def fix(options: argparse.Namespace) -> int:
    """Find edits that cure findings, prove them, and show them as a diff."""
    from torchproof import api

    output.assert_writable(options.output)
    if saved := _saved_run(options.target):
        where = {"write": options.write, "patch": options.patch}
        if not any(where.values()):
            raise UserError(
                f"{saved.id} is a saved run: add --write or --patch DIR to apply its"
                f" fixes; torchproof show {saved.id} prints it"
            )
        run = api.deliver_saved(saved, **where, command=options.command)
        return _show_fixes(run, options)
    fix_options = api.FixOptions(
        effort=options.effort,
        unsafe=options.unsafe,
        select=tuple(flags.names(options.select)),
        write=options.write,
        patch=options.patch,
    )
    with output.progress(options) as progress:
        run = api.fix(
            api.parse(options.target, options.script),
            _run_options(options),
            fix_options=fix_options,
            progress=progress,
            command=options.command,
        )
    return _show_fixes(run, options)


def _saved_run(text: str) -> Run | None:
    """The saved run that a word names; None if it is a target."""
    if ":" in text or (os.path.exists(text) and not text.endswith(".json")):
        return None
    try:
        return store.load(text)
    except UserError:
        return None


def _show_fixes(run: Run, options: argparse.Namespace) -> int:
    output.show(run, options)
    failed = failed_code(run, options)
    verified = any(fix.status == "verified" for fix in run.fixes)
    return int(verified) if failed is None else failed


def pack(options: argparse.Namespace) -> int:
    """Write a self-contained repro of a failure, or a model with its compiled code."""
    from torchproof import api

    assert_fit(options)
    try:
        with output.progress(options) as progress:
            result = api.pack(
                _pack_source(options),
                _run_options(options),
                purpose=options.purpose,
                dest=options.dest,
                overwrite=options.overwrite,
                pack_options=_pack_options(options),
                effort=options.effort or "normal",
                progress=progress,
                command=options.command,
            )
    except api.Unverified as error:
        output.note(f"torchproof: no pack was written: {error}")
        return 1
    output.show_pack(result, options)
    return 0


def _pack_source(options: argparse.Namespace) -> Target | Run:
    """A saved run if `what` names one, otherwise a target."""
    from torchproof import api

    path = Path(options.what)
    if options.purpose == "repro":
        if path.suffix == ".json" or os.path.isfile(path / "run.json"):
            return store.load(options.what)
        with contextlib.suppress(UserError):
            return store.load(options.what)
    return api.parse(options.what, options.script)


def _pack_options(options: argparse.Namespace) -> Any:
    from torchproof import api

    if options.purpose == "repro":
        settings: dict[str, Any] = {"select": tuple(flags.names(options.select or ""))}
        settings |= {"minify": options.minify}
        settings |= {"include": frozenset(flags.names(options.include or ""))}
        if options.budget:
            settings["budget_s"] = options.budget
        return api.ReproOptions(**settings)
    return api.DeployOptions(
        recipe=options.recipe,
        strategy=options.strategy,
        artifact=options.artifact or "caches",
        key=api.read_key(options.key, environ={}),
        ranks=options.ranks,
        wrap=options.wrap,
    )


def _run_options(options: argparse.Namespace) -> Options:
    from torchproof import api

    return api.Options(
        compile=flags.compile_arguments(options.compile),
        as_written=options.as_written,
        train=options.train,
        device=options.device,
        size=options.size,
        timeout_s=options.timeout,
        quiet=options.quiet,
    )


def _list_workloads(options: argparse.Namespace) -> int:
    from torchproof.api import WORKLOADS

    rows = [
        {"target": f"workload:{name}", **dataclasses.asdict(workload)}
        for name, workload in sorted(WORKLOADS.items())
    ]
    output.rows(rows, _workload_lines, options)
    return 0


def _workload_lines(row: dict[str, Any]) -> str:
    marks = {"tiny": " (default)", row["gpu_size"]: " (default on a GPU)"}
    sizes = [f"{s} {_count(n)}{marks.get(s, '')}" for s, n in row["sizes"].items()]
    text = textwrap.fill(f"sizes: {', '.join(sizes)}", 76)
    return f"{row['target']}\n" + textwrap.indent(f"{row['summary']}\n{text}", "    ")


def _count(parameters: int) -> str:
    """12.3k, 145.7M, 39.5B."""
    for unit, one in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if parameters >= one:
            return f"{parameters / one:.1f}{unit}"
    return str(parameters)


def _exit_code(run: Run, options: argparse.Namespace) -> int:
    failed = failed_code(run, options)
    if failed is not None:
        return failed
    if options.fail_on != "never":
        bad = SEVERITIES[: SEVERITIES.index(options.fail_on) + 1]
        tree = CauseTree(run.findings)  # a cause is as severe as the worst it explains
        if any(tree.severity(cause) in bad for cause in tree.causes):
            return 1
    return incomplete(run)


def incomplete(run: Run) -> int:
    """2 if a part failed for a reason that no finding tells."""
    if any(f.kind == "compile_error" and f.status == "open" for f in run.findings):
        return 0
    broken = [name for name, part in run.parts.items() if part.status == "failed"]
    for name in broken:
        output.note(f"torchproof: error: part {name} failed: {run.parts[name].why}")
    return 2 if broken else 0


def failed_code(run: Run, options: argparse.Namespace) -> int | None:
    """The exit code of a run that did not complete; None if it did."""
    if run.ending == "interrupted":
        return 130
    if run.ending == "timeout":
        output.note(
            f"torchproof: target stopped after {options.timeout:g} s (--timeout)"
        )
        return 2
    if run.error:
        output.note(f"torchproof: error: {run.error}")
        return 2
    return None


def compare(options: argparse.Namespace) -> int:
    """Compare two runs: is B better than A, worse, or not significantly different?"""
    from torchproof import api, report

    output.assert_writable(options.output)
    limits = api.Thresholds.parse(options.threshold)
    comparison = api.compare(store.load(options.a), store.load(options.b), limits)
    columns = output.width(options)
    text = report.render_comparison(comparison, options.format, width=columns)
    output.write(text, options)
    return _comparison_code(comparison)


def _comparison_code(comparison: Comparison) -> int:
    """1 on a regression; 2 if a row could not be compared."""
    if comparison.regressions or not comparison.uncompared:
        return int(bool(comparison.regressions))
    rows = "; ".join(comparison.uncompared)
    output.note(f"torchproof: error: not compared: {rows}")
    return 2


def show(options: argparse.Namespace) -> int:
    """Print a saved run or a pack; with --caches, list torch's compile caches."""
    from torchproof import api

    output.assert_writable(options.output)
    if options.caches or options.clear:
        return _show_caches(options)
    if options.list:
        return _list_runs(options)
    if options.run and api.is_pack(options.run):
        return _show_pack(options)
    output.show(store.load(options.run), options)
    return 0


def _show_pack(options: argparse.Namespace) -> int:
    """Prints a pack without running any of it; exit code 1 if it is damaged."""
    from torchproof import api
    from torchproof.report import pack as pack_report

    if options.format not in pack_report.FORMATS:
        formats = ", ".join(pack_report.FORMATS)
        raise UserError(f"--format {options.format}: a pack is shown as {formats}")
    inspection = api.inspect(options.run, api.read_key())
    width = output.width(options)
    output.write(pack_report.render(inspection, options.format, width=width), options)
    return int(not inspection.is_intact)


def _show_caches(options: argparse.Namespace) -> int:
    """Lists the compile caches, after deleting what `--clear` names."""
    from torchproof.report import cache_folders, cache_listing

    if not options.caches:
        raise UserError("--clear needs --caches")
    if options.format not in ("text", "json"):
        raise UserError(f"--format {options.format}: caches are shown as text or json")
    if options.run is not None or options.list:
        raise UserError("--caches cannot be combined with a run or --list")
    folders = cache_folders.listing()
    cleared = cache_folders.cleared(folders, options.clear) if options.clear else None
    width = output.width(options)
    text = cache_listing.render(folders, cleared, options.format, width=width)
    output.write(text, options)
    return 0


def _list_runs(options: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for run in _saved(notes):
        findings = run.fixing.remaining if run.fixing else run.findings
        count = sum(f.status == "open" for f in findings)
        row = {"id": run.id, "verb": run.verb, "target": run.target}
        rows.append(row | {"ending": run.ending, "open_findings": count})
    form = "{id}  {verb} {target}  {ending}, open findings {open_findings}"
    output.rows(rows, lambda row: unbroken(form.format(**row)), options)
    for note in notes:
        output.note(note)
    return 0


def _saved(notes: list[str]) -> Iterator[Run]:
    """The saved runs. One that cannot be read is noted and skipped."""
    for folder in store.listing():
        try:
            yield store.read(folder / "run.json")
        except UserError as error:
            notes.append(f"torchproof: {error}")


def log(options: argparse.Namespace) -> int:
    """Print the experiment log, or add a plan, a run or a retrospective."""
    from torchproof.report import log as experiment_log

    flags.assert_fit_log(options)
    file, what, again = Path(options.file), options.what, options.again
    notes: list[str] = []
    if options.action is None:
        return _print_log(file, options)
    if options.action == "add":
        added = experiment_log.add(
            file, store.load(what), came_from=what or "", again=again
        )
    elif options.action == "plan":
        expect, target = options.expect, options.target
        added = experiment_log.plan(file, what or "", expect=expect, target=target)
    else:
        added = experiment_log.retrospective(
            file, [*_saved(notes)], name=what, again=again
        )
    print(line(f"{file}:{added.line}: {added.kind} {added.id}"))
    if added.note:
        notes.append(f"torchproof: {file}: {added.note}")
    for note in notes:
        output.note(note)
    return 0


def _print_log(file: Path, options: argparse.Namespace) -> int:
    from torchproof.report import log as experiment_log

    text = experiment_log.read(file)
    if text is None:
        print(
            f"There is no {line(file)} here. Start one with\n"
            '  torchproof log plan "what you will try"\n'
            "  torchproof log add RUN"
        )
    elif options.list:
        for entry in experiment_log.entries(text):
            text = f"{entry.id or '-'}  {entry.date}  {entry.kind}: {entry.title}"
            print(unbroken(text))
    else:
        sys.stdout.write(document(text))
    return 0


def rule(options: argparse.Namespace) -> int:
    """Explain a rule; without a code, list all rules."""
    from torchproof import report

    if options.code:
        print(report.rule_page(options.code))
    else:
        print(report.rule_list())
    return 0


def mcp(options: argparse.Namespace) -> int:
    """Serve check, explain, fix, bench and compare to coding agents, over stdio."""
    for name in ("mcp", "anyio", "pydantic"):
        if importlib.util.find_spec(name) is None:
            raise UserError("mcp needs the MCP SDK: pip install 'torchproof[mcp]'")
    from torchproof.cli import mcp_server

    try:
        os.chdir(options.directory)
    except OSError as error:
        raise UserError(f"--directory {options.directory}: {error.strerror}") from None
    if sys.stdin.isatty():
        output.note("torchproof: serves an MCP client on stdin and stdout; Ctrl-C ends")
    mcp_server.serve()
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Try what torchproof needs on this machine; exit code 1 if something is broken."""
    from torchproof import api
    from torchproof.report import machine

    output.assert_writable(options.output)
    with output.plain_progress(options.quiet) as progress:
        checks = api.examine(progress)
    width, verbose = output.width(options), options.verbose
    text = machine.render(checks, options.format, width=width, verbose=verbose)
    output.write(text, options)
    return int(any(check.is_problem for check in checks))


def completion(options: argparse.Namespace) -> int:
    """Print the script that completes verbs, flags, targets and runs in your shell."""
    from torchproof.cli.completion import SCRIPTS, complete

    if (options.shell is None) == (options.line is None):
        raise UserError(f"completion needs a shell: {', '.join(SCRIPTS)}")
    if options.line is not None:
        sys.stdout.write(complete(options.line, _parser))
    else:
        sys.stdout.write(SCRIPTS[options.shell])
    return 0
