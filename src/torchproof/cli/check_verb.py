"""`check`: alone, on ranks that it starts, or as a rank of a launch."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from torchproof.cli import exit_codes, output, timelines
from torchproof.cli.commands import Check
from torchproof.records import PartState, Run, UserError
from torchproof.records.option import values_of
from torchproof.records.options import CheckOptions, Options, RankOptions

if TYPE_CHECKING:
    from torchproof.api import ExistingLaunch, Ranks


def check(options: Check) -> int:
    if options.list:
        return _list_workloads(options)
    if not options.target:
        raise UserError(
            "check needs a TARGET; torchproof check --list lists the workloads"
        )
    from torchproof import api

    launch = api.ExistingLaunch.current()
    if launch is not None:
        return _check_in_launch(options, launch)
    ranks = options.ranks
    if ranks is not None and "--ranks" not in options.flags:
        flag = "--launcher" if ranks.launcher else "--wrap"
        raise UserError(f"{flag} is for several ranks: add --ranks N")
    if ranks is not None and ranks.spans_nodes:
        _become_launcher(options, ranks)
    return _check(options, ranks)


def _check(options: Check, ranks: Ranks | None) -> int:
    from torchproof import report

    output.assert_writable(options.output)
    output.assert_writable(options.trace, "--trace")
    # Ranks record timelines of their own.
    trace = bool(options.trace) and ranks is None
    with timelines.recorded(trace) as timeline:
        run = _checked(options, timeline, ranks)
        output.show(run, options)
        if timeline is not None:
            timeline.write(run, options)
    if options.trace and ranks is not None:
        text, quiet = report.rank_trace.render(run), options.quiet
        output.write_file(options.trace, text, flag="--trace", quiet=quiet)
    return exit_codes.check_code(run, options)


def _checked(
    options: Check,
    timeline: timelines.RunTimeline | None,
    ranks: Ranks | None,
) -> Run:
    """The run of a check that a command line asks for, with its progress shown."""
    from torchproof import api

    with output.progress(options) as progress:

        def enter(part: PartState) -> None:
            progress.enter(part)
            if timeline is not None:
                timeline.enter(part)

        return output.run_of(
            api.check,
            api.parse(options.target, options.script),
            **values_of(Options, options),
            **values_of(CheckOptions, options),
            ranks=ranks,
            progress=progress,
            entering=enter,
            command=options.line,
        )


def _check_in_launch(options: Check, launch: ExistingLaunch) -> int:
    """Checks as a rank of a launch: rank 0 reports, all end with its exit code."""
    from torchproof import api

    rank, of = launch.place.rank, launch.count
    wrap = options.ranks.wrap if options.ranks else None
    launch = dataclasses.replace(launch, wrap=wrap)
    if rank != 0:
        with contextlib.suppress(UserError), output.progress(options):
            target = api.parse(options.target, options.script)
            return launch.take_part(target, Options(**values_of(Options, options)))
        return 2  # rank 0 prints the error
    code = 2
    try:
        if {"--ranks", "--launcher"} & {*options.flags}:
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


def _become_launcher(options: Check, ranks: RankOptions) -> NoReturn:
    """Replaces this process by torch's launcher, which starts a check on each rank.

    The launchers of all machines find each other; rank 0 reports for all.
    """
    from torchproof import api

    api.assert_launchable(api.parse(options.target, options.script), ranks)
    words = shlex.split(options.line)[1:]
    cut = words.index("--") if "--" in words else len(words)
    own = _without(words[:cut], "--ranks", "--launcher")
    launcher = [sys.executable, "-m", "torch.distributed.run", *ranks.command]
    command = [*launcher, "-m", "torchproof", *own, *words[cut:]]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _without(words: Sequence[str], *flags: str) -> list[str]:
    """A command line without some flags that take a value."""
    remaining: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in flags:
            next(rest, None)
        elif word.partition("=")[0] not in flags:
            remaining.append(word)
    return remaining


def _list_workloads(options: Check) -> int:
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
