"""The verbs that measure: `bench`, `loadtest`, `tune`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from torchproof.cli import exit_codes, flags, output, timelines
from torchproof.records import Run, UserError, store

if TYPE_CHECKING:
    from torchproof.api import LoadOptions, TextOptions


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
        steps_only=options.steps_only,
    )
    with timelines.recorded(bool(options.trace)) as timeline:
        with output.progress(options) as progress:
            run = output.run_of(
                api.bench,
                api.parse(options.target, options.script),
                flags.run_options(options),
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
    failed = exit_codes.failed_code(run, options)
    if failed is not None:
        return failed
    return exit_codes.comparison_code(comparison) if comparison else 0


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
        run = output.run_of(
            api.loadtest,
            api.parse(options.target, options.script),
            flags.run_options(options),
            load_options=load_options,
            progress=progress,
            command=options.command,
        )
    if options.trace:
        text, quiet = report.load_trace.render(run), options.quiet
        output.write_file(options.trace, text, flag="--trace", quiet=quiet)
    failed = exit_codes.failed_code(run, options)
    comparison = api.compare(baseline, run) if baseline and failed is None else None
    output.show(run, options, comparison)
    if failed is not None:
        return failed
    missed = _missed_objective(run)
    return missed or (exit_codes.comparison_code(comparison) if comparison else 0)


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
        for name in ("temperature", "queue_limit", "price")
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
        run = output.run_of(
            api.tune,
            api.parse(options.target, options.script),
            flags.run_options(options),
            tune_options=tune_options,
            recipe_file=options.recipe,
            overwrite=options.overwrite,
            watcher=board,
            command=options.command,
        )
    output.show(run, options)
    failed = exit_codes.failed_code(run, options)
    return (
        int(run.tuning is not None and run.tuning.chosen == "eager")
        if failed is None
        else failed
    )
