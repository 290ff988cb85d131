"""The command line: one function a verb. They print through `output`."""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import shlex
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torchproof.cli import flags, output
from torchproof.cli.pack_flags import pack_flags
from torchproof.cli.pack_verb import pack
from torchproof.cli.run_options import run_options
from torchproof.cli.tune_flags import tune_flags
from torchproof.records import (
    SEVERITIES,
    Run,
    UserError,
    document,
    line,
    store,
    unbroken,
)

if TYPE_CHECKING:
    from torchproof.api import Comparison


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """One line, exit code 2."""
        said = f"{self.prog}: error: {message} (see {self.prog} --help)"
        self.exit(2, f"{line(said)}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):  # a name need not fit its encoding
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, script = given, []
    if "--" in given:
        cut = given.index("--")
        own, script = given[:cut], given[cut + 1 :]
    options = _parser().parse_args(own)
    options.script = script
    options.command = shlex.join(["torchproof", *given])
    try:
        code = int(options.verb(options))
        sys.stdout.flush()
        return code
    except UserError as error:
        output.note(f"torchproof: error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `torchproof rule | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # of the disk, or of a name that it cannot hold
        output.note(f"torchproof: error: {error}")
        return 2
    except Exception:  # exit code 1 would say that something was found
        traceback.print_exc()
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="torchproof",
        description=(
            "Makes torch.compile dependable: finds what goes wrong when a model"
            " compiles."
        ),
        epilog="example: torchproof check workload:gpt-original",
    )
    from torchproof import __version__

    parser.add_argument(
        "--version", action="version", version=f"torchproof {__version__}"
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    flags.check_flags(_verb(verbs, check, "torchproof check train.py -- --epochs 1"))
    flags.bench_flags(_verb(verbs, bench, "torchproof bench workload:gpt --modes"))
    tune_flags(_verb(verbs, tune, "torchproof tune workload:gpt --budget 5m"))
    pack_flags(_verb(verbs, pack, "torchproof pack train.py:make --for repro"))
    flags.compare_flags(_verb(verbs, compare, "torchproof compare before.json after"))
    flags.show_flags(_verb(verbs, show, "torchproof show --list"))
    flags.log_flags(_verb(verbs, log, 'torchproof log plan "cure the breaks"'))
    rule_flags = _verb(verbs, rule, "torchproof rule GB101")
    rule_flags.add_argument(
        "code", nargs="?", metavar="CODE", help="a rule's code; without it, all rules"
    )
    return parser


def _verb(verbs: Any, function: Any, example: str) -> argparse.ArgumentParser:
    text = function.__doc__
    parser: argparse.ArgumentParser = verbs.add_parser(
        function.__name__, help=text, description=text, epilog=f"example: {example}"
    )
    parser.set_defaults(verb=function)
    return parser


def check(options: argparse.Namespace) -> int:
    """Run a target; list what goes wrong when it compiles, where, and what fixes it."""
    if options.list:
        return _list_workloads(options)
    if options.target is None:
        raise UserError(
            "check needs a TARGET; torchproof check --list names the workloads"
        )
    from torchproof import api

    output.assert_writable(options.output)
    baseline = store.load(options.baseline) if options.baseline else None
    with output.progress(options) as progress:
        run = api.check(
            api.parse(options.target, options.script),
            run_options(options),
            effort=options.effort,
            skip=flags.names(options.skip),
            select=flags.names(options.select),
            ignore=flags.names(options.ignore),
            baseline=baseline,
            progress=progress,
            command=options.command,
        )
    output.show(run, options)
    return _exit_code(run, options)


def bench(options: argparse.Namespace) -> int:
    """Measure what compiling a target is worth, and in which way."""
    from torchproof import api

    output.assert_writable(options.output)
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
    )
    with output.progress(options) as progress:
        run = api.bench(
            api.parse(options.target, options.script),
            run_options(options),
            bench_options=bench_options,
            seconds=options.seconds,
            repeats=options.repeats,
            profile=options.profile,
            progress=progress,
            command=options.command,
        )
    found = api.compare(baseline, run) if baseline else None
    output.show(run, options, found)
    failed = _not_run(run, options)
    if failed is not None:
        return failed
    return _compared(found) if found else 0


def tune(options: argparse.Namespace) -> int:
    """Find the fastest safe way to run a target; write it as a recipe."""
    from torchproof import api

    output.assert_writable(options.output)
    asked = api.TuneOptions(
        objective=api.Objective.parse(options.objective),
        budget_s=options.budget,
        effort=options.effort,
        least=options.min_gain,
        names=tuple(flags.names(options.strategies)),
        resume=options.resume,
        ray=options.ray,
    )
    with output.board(options) as board:
        run = api.tune(
            api.parse(options.target, options.script),
            run_options(options),
            asked=asked,
            recipe_file=options.recipe,
            overwrite=options.overwrite,
            watcher=board,
            command=options.command,
        )
    output.show(run, options)
    failed = _not_run(run, options)
    return int((run.tuning or {})["chosen"] == "eager") if failed is None else failed


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
    failed = _not_run(run, options)
    if failed is not None:
        return failed
    if options.fail_on == "never":
        return 0
    bad = SEVERITIES[: SEVERITIES.index(options.fail_on) + 1]
    return int(any(f.status == "open" and f.severity in bad for f in run.findings))


def _not_run(run: Run, options: argparse.Namespace) -> int | None:
    """The exit code of a run that was not made to its end; None for one that was."""
    if run.ending == "interrupted":
        return 130
    if run.ending == "timeout":
        said = f"the target was ended after {options.timeout:g} s (--timeout)"
        output.note(f"torchproof: {said}")
        return 2
    if run.error:
        output.note(f"torchproof: error: {run.error}")
        return 2
    return None


def compare(options: argparse.Namespace) -> int:
    """Say whether run B is better or worse than run A, or neither significantly."""
    from torchproof import api, report

    output.assert_writable(options.output)
    limits = api.Thresholds.parse(options.threshold)
    found = api.compare(store.load(options.a), store.load(options.b), limits)
    columns = output.width(options)
    text = report.render_comparison(found, options.format, width=columns)
    output.write(text, options)
    return _compared(found)


def _compared(found: Comparison) -> int:
    """A row that cannot be compared does not pass in silence."""
    if found.regressions or not found.uncompared:
        return int(bool(found.regressions))
    output.note(f"torchproof: error: not compared: {'; '.join(found.uncompared)}")
    return 2


def show(options: argparse.Namespace) -> int:
    """Render a saved run or a pack; with --caches, where compiled code is cached."""
    from torchproof import api
    from torchproof.cli import showing

    output.assert_writable(options.output)
    if options.caches or options.clear:
        return showing.caches(options)
    if options.list:
        return _list_runs(options)
    if options.run and api.is_pack(options.run):
        return showing.pack(options)
    output.show(store.load(options.run), options)
    return 0


def _list_runs(options: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for run in _saved(notes):
        count = sum(f.status == "open" for f in run.findings)
        row = {"id": run.id, "verb": run.verb, "target": run.target}
        rows.append(row | {"ending": run.ending, "open_findings": count})
    form = "{id}  {verb} {target}  {ending}, open findings {open_findings}"
    output.rows(rows, lambda row: unbroken(form.format(**row)), options)
    for note in notes:
        output.note(note)
    return 0


def _saved(notes: list[str]) -> Iterator[Run]:
    """The saved runs; one that cannot be read is noted, and hides no other."""
    for folder in store.listing():
        try:
            yield store.read(folder / "run.json")
        except UserError as error:
            notes.append(f"torchproof: {error}")


def log(options: argparse.Namespace) -> int:
    """Print the experiment log, or add what is planned, observed or learned."""
    from torchproof.report import log as journal

    flags.assert_fit_log(options)
    file, what, again = Path(options.file), options.what, options.again
    notes: list[str] = []
    if options.action is None:
        return _print_log(file, options)
    if options.action == "add":
        added = journal.add(file, store.load(what), came_from=what or "", again=again)
    elif options.action == "plan":
        expect, target = options.expect, options.target
        added = journal.plan(file, what or "", expect=expect, target=target)
    else:
        added = journal.retrospective(file, [*_saved(notes)], name=what, again=again)
    print(line(f"{file}:{added.line}: {added.kind} {added.id}"))
    if added.note:
        notes.append(f"torchproof: {file}: {added.note}")
    for note in notes:
        output.note(note)
    return 0


def _print_log(file: Path, options: argparse.Namespace) -> int:
    from torchproof.report import log as journal

    text = journal.read(file)
    if text is None:
        print(
            f"There is no {line(file)} here. It begins with one of\n"
            '  torchproof log plan "what you will try"\n'
            "  torchproof log add RUN"
        )
    elif options.list:
        for entry in journal.entries(text):
            said = f"{entry.id or '-'}  {entry.date}  {entry.kind}: {entry.title}"
            print(unbroken(said))
    else:
        sys.stdout.write(document(text))
    return 0


def rule(options: argparse.Namespace) -> int:
    """Say what a code means; without one, list all codes."""
    from torchproof import report

    if options.code:
        print(report.rule_page(options.code))
    else:
        print(report.rule_list())
    return 0
