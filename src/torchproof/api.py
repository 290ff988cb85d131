"""The product as functions: each takes a target and returns a saved run."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchproof import audit, measure, questions, rules, store
from torchproof.audit import Audited
from torchproof.capture import Options, observe
from torchproof.parts import MEASURED, OF_MEASURED, Examination, Found
from torchproof.questions import Questions
from torchproof.records import (
    Event,
    Finding,
    Observation,
    Part,
    Run,
    UserError,
    one_line,
)
from torchproof.target import Target, assert_size
from torchproof.target import parse as parse_target

Progress = Callable[[str], None]

PARTS = (
    "static",
    "breaks",
    "baseline",
    "batch",
    "sequence",
    "latency",
    "guards",
    "lifetimes",
)
OF_OTHERS = (*OF_MEASURED, *audit.CODES)  # codes that are not of part breaks
EFFORTS: dict[str, tuple[str, ...]] = {
    "quick": ("static", "breaks"),
    "normal": ("static", "breaks", "baseline", "batch", "sequence", "latency"),
    "full": PARTS,
}


def check(
    target: str | Target,
    options: Options | None = None,
    *,
    effort: str = "normal",
    skip: Iterable[str] = (),
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    progress: Progress = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    """What goes wrong when the target compiles; the run is saved and returned."""
    target = parse_target(target) if isinstance(target, str) else target
    options = options or Options()
    left_out, select, ignore = set(skip), list(select), list(ignore)
    _assert_possible(target, options, effort, left_out)
    rules.select([], select, ignore)  # a wrong code fails before the run
    store.assert_writable(save_in)
    started = datetime.datetime.now()
    wanted = [name for name in EFFORTS[effort] if name not in left_out]
    observation, measured = _seen(target, options, wanted, progress)
    observation, audited = _audited(observation, target, options, wanted, tell=progress)
    every = rules.with_costs(rules.check(observation), measured.gaps)
    found = rules.select(every, select, ignore)
    breaks = _breaks(observation, every=every, found=found)
    own = {"breaks": breaks, "lifetimes": audited.part(found)}
    return store.save(
        Run(
            id=f"{started:%Y%m%d-%H%M}-{target.name}",
            target=target.text,
            strategy="as-written" if _as_written(observation, target) else "full",
            environment=observation.environment,
            counts=_counts(observation, every, "breaks" in left_out) | audited.counts,
            findings=tuple(found),
            measurements=tuple(measured.rows),
            parts={
                name: _part(name, effort, left_out)
                or measured.part(name, found)
                or own.get(name, own["breaks"])
                for name in PARTS
            },
            command=command,
            started=started.isoformat(timespec="seconds"),
            ending=observation.ending,
            exit_code=observation.exit_code,
            error=one_line(observation.error) if observation.error else None,
        ),
        save_in,
    )


def _seen(
    target: Target, options: Options, wanted: list[str], progress: Progress
) -> tuple[Observation, Found]:
    """What the parts saw; those that measure, where the target can run again."""
    seen = Observation((), {"torch": None, "device": None})
    if "breaks" in wanted:
        seen = observe(target, options, progress)
    why = None
    if target.kind == "script":
        why = "a script is run once; torchproof bench measures it"
    elif target.kind == "trace":
        why = "a trace cannot be run"
    elif seen.error or seen.ending != "finished":
        why = "the target did not run to its end"
    measuring = [name for name in wanted if name in MEASURED]
    if why or not measuring:
        skipped = {name: Part("skipped", why or "") for name in measuring}
        return seen, Found(parts=skipped)
    found = Examination(target, options, progress).run(measuring)
    ending = "interrupted" if found.interrupted else seen.ending
    return replace(
        seen,
        events=(*seen.events, *found.events),
        environment={**seen.environment, **found.environment},
        ending=ending,
    ), found


def _audited(
    seen: Observation,
    target: Target,
    options: Options,
    wanted: list[str],
    *,
    tell: Progress,
) -> tuple[Observation, Audited]:
    """What part lifetimes adds to what was seen, if it is wanted and possible."""
    why = _why_not_audited(target, wanted, seen)
    if "lifetimes" not in wanted or why:
        return seen, audit.skipped(why or "")
    found = audit.audit(target, options, tell)
    return replace(
        seen,
        events=(*seen.events, *found.events),
        environment={**seen.environment, **found.environment},
        ending="interrupted" if found.interrupted else seen.ending,
    ), found


def _why_not_audited(
    target: Target, wanted: list[str], seen: Observation
) -> str | None:
    if target.kind == "trace":
        return "a trace cannot be run"
    if target.kind == "script" and "breaks" in wanted:
        return "a script is run once; with --skip breaks this part runs it"
    if seen.error or seen.ending != "finished":
        return "the target did not run to its end"
    return None


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


def _assert_possible(
    target: Target, options: Options, effort: str, left_out: set[str]
) -> None:
    """What can be said to be wrong before anything runs."""
    if target.kind == "source":
        raise UserError(
            f"{target.text} is a folder: give a file.py:factory or a script to run"
        )
    assert_size(target, options.size)
    if effort not in EFFORTS:
        raise UserError(f"no effort {effort!r}: choose one of {', '.join(EFFORTS)}")
    if unknown := sorted(left_out - set(PARTS)):
        raise UserError(f"no part {unknown[0]!r} to skip: parts are {', '.join(PARTS)}")


def _as_written(observation: Observation, target: Target) -> bool:
    """Whether the program compiled itself, rather than torchproof for it."""
    if target.kind in {"script", "trace"}:
        return True
    return not any(
        e.data["by_torchproof"] for e in observation.events if e.kind == "wrapper"
    )


def counts_of(
    observation: Observation, found: list[Finding] | None = None
) -> dict[str, int | None]:
    """The counts of a run, from its events and all of its findings."""
    events = observation.events
    found = rules.check(observation) if found is None else found
    return {
        "calls": observation.calls,
        "compiled_calls": observation.compiled_calls,
        "graphs": sum(event.kind == "graph" for event in events),
        "graph_breaks": sum(f.kind in {"graph_break", "skipped_frame"} for f in found),
        "skipped_frames": len({_skipped(event) for event in events} - {None}),
        "recompiles": sum(event.kind == "recompile" for event in events),
        **audit.skipped("").counts,  # those of part lifetimes
    }


def _counts(
    observation: Observation, every: list[Finding], unseen: bool
) -> dict[str, Any]:
    """What was not observed is None, never 0."""
    counts = counts_of(observation, every)
    return dict.fromkeys(counts) if unseen else counts


def _skipped(event: Event) -> tuple[str, int, str] | None:
    """The function a frame belonged to that Dynamo gave up on."""
    if event.function is None or not (
        event.data.get("skips")
        or (event.kind == "compile_failure" and not event.data.get("raised"))
    ):
        return None
    return event.function.file, event.function.line, event.function.function


def _part(name: str, effort: str, left_out: set[str]) -> Part | None:
    """A part that was not done, and why; None for one that was."""
    if name in left_out:
        return Part("skipped", "left out with --skip")
    if name not in EFFORTS[effort]:
        return Part("skipped", f"not part of --effort {effort}")
    if name == "static":
        return Part("skipped", "not in this version")
    return None


def _breaks(
    observation: Observation, *, every: list[Finding], found: list[Finding]
) -> Part:
    if observation.error or observation.ending != "finished":
        return Part("failed", observation.error or f"ended by {observation.ending}")
    count, total = (
        sum(f.status == "open" and not f.code.startswith(OF_OTHERS) for f in each)
        for each in (found, every)
    )
    hidden = f"{total - count} left out by --select or --ignore"
    return Part("found" if count else "passed", hidden if total > count else "")
