"""The verbs that measure: `bench`, `loadtest`, `tune`."""

from __future__ import annotations

from torchproof.cli import exit_codes, output, timelines
from torchproof.cli.commands import Bench, Loadtest, Tune
from torchproof.records import Run, UserError, store
from torchproof.records.load_options import LoadOptions
from torchproof.records.option import values_of
from torchproof.records.options import BenchOptions, Options, TuneOptions


def bench(options: Bench) -> int:
    from torchproof import api

    output.assert_writable(options.output)
    output.assert_writable(options.trace, "--trace")
    baseline = store.load(options.baseline) if options.baseline else None
    with timelines.recorded(bool(options.trace)) as timeline:
        with output.progress(options) as progress:
            run = output.run_of(
                api.bench,
                api.parse(options.target, options.script),
                **values_of(Options, options),
                **values_of(BenchOptions, options),
                progress=progress,
                command=options.line,
            )
        if timeline is not None:
            timeline.write(run, options)
    comparison = api.compare(baseline, run) if baseline else None
    output.show(run, options, comparison)
    return exit_codes.interrupted_code(run, options) or (
        exit_codes.comparison_code(comparison) if comparison else 0
    )


def loadtest(options: Loadtest) -> int:
    from torchproof import api, report

    output.assert_writable(options.output)
    output.assert_writable(options.trace, "--trace")
    flags = {*options.flags}
    if options.text and not flags & {"--prompt-tokens", "--output-tokens"}:
        flag = min(flags & {"--temperature", "--queue-limit", "--price"})
        raise UserError(f"{flag}: add --output-tokens, which serves a text model")
    baseline = store.load(options.baseline) if options.baseline else None
    if baseline:
        api.assert_comparable(baseline, options)
    with output.progress(options) as progress:
        run = output.run_of(
            api.loadtest,
            api.parse(options.target, options.script),
            **values_of(Options, options),
            **values_of(LoadOptions, options),
            progress=progress,
            command=options.line,
        )
    if options.trace:
        text, quiet = report.load_trace.render(run), options.quiet
        output.write_file(options.trace, text, flag="--trace", quiet=quiet)
    complete = run.ending not in ("interrupted", "timeout") and not run.error
    comparison = api.compare(baseline, run) if baseline and complete else None
    output.show(run, options, comparison)
    return (
        exit_codes.interrupted_code(run, options)
        or _missed_objective(run)
        or (exit_codes.comparison_code(comparison) if comparison else 0)
    )


def _missed_objective(run: Run) -> int:
    """1 if every strategy that answered requests misses the objective."""
    results = run.load_test.results if run.load_test else ()
    verdicts = {result.verdict for result in results if result.answered}
    return int(verdicts == {"missed"})


def tune(options: Tune) -> int:
    from torchproof import api

    output.assert_writable(options.output)
    with output.progress(options) as board:
        run = output.run_of(
            api.tune,
            api.parse(options.target, options.script),
            **values_of(Options, options),
            **values_of(TuneOptions, options),
            recipe_file=options.recipe,
            overwrite=options.overwrite,
            watcher=board,
            command=options.line,
        )
    output.show(run, options)
    no_gain = run.tuning is not None and run.tuning.chosen == "eager"
    return exit_codes.interrupted_code(run, options) or int(no_gain)
