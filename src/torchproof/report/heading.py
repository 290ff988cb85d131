"""What stands at the top of a report: the target, when, how, and where it ran."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.records import Run
from torchproof.report import commands, markup

_MACHINE = ("threads", "cores", "machine", "platform")
_FACTS = ("torch", "cuda", "python", "gpu", "device", *_MACHINE)
_READ = {"static"}
_CACHES = ("_CACHE_DIR", "_REMOTE_CACHE")  # where, and not how, something is compiled


def heading(run: Run, title: str) -> Iterator[str]:
    yield f"# {title}: {markup.code(run.target)}"
    yield markup.bullets(f"**{name}:** {text}" for name, text in _facts(run))
    if run.error or run.ending != "finished":
        why = run.error or f"the run was ended early ({run.ending})"
        yield f"Not complete: {markup.inline(why)}. This is what was seen until then."


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    yield "Target", markup.code(run.target)
    when = markup.inline(_moment(run.started))
    if when and run.verb in ("bench", "tune"):
        yield "Measured", when
    elif when:
        yield "Analysed", when
        yield "Last verified", f"{when}, by this run"
    if run.verb == "check":
        told = f", effort {commands.effort(run)}" if run.parts else ""
        yield "Mode", f"{mode(run)}{told}"
    yield "Entry point", _entry(run)
    if run.strategy.strip("-"):
        yield "Strategy", markup.inline(run.strategy)
    if where := _environment(run):
        yield "Environment", where
    if run.command:
        yield "Command", markup.code(run.command)
    yield "Run", markup.code(run.id)
    if run.baseline:
        before = markup.code(run.baseline.get("id", ""))
        since = run.baseline.get("started")
        told = f" of {markup.inline(_moment(str(since)))}" if since else ""
        other = run.baseline.get("target", run.target)
        told += f", target {markup.code(other)}" if other != run.target else ""
        yield "Compared with", f"run {before}{told}"


def mode(run: Run) -> str:
    """Whether the program was read, run, or both."""
    done = {name for name, part in run.parts.items() if part.status != "skipped"}
    if not done:
        return "nothing was done"
    if done <= _READ:
        return "static (read, not run)"
    return "both (read and run)" if done & _READ else "measured (run, not read)"


def _moment(text: str) -> str:
    return text.replace("T", " ")


def _entry(run: Run) -> str:
    form = commands.kind(run.target)
    name = run.target.partition(":")[2]
    if form == "workload":
        return f"the bundled workload {markup.code(name)}"
    if form == "trace":
        return f"a recorded trace in {markup.code(name)}"
    if form == "factory":
        where, _, factory = run.target.rpartition(":")
        return f"{markup.code(f'{factory}()')} in {markup.code(where)}"
    if form == "script" and mode(run) != "static (read, not run)":
        return f"{markup.code(run.target)}, run as a script"
    return markup.code(run.target)


def _environment(run: Run) -> str:
    facts = run.environment
    told = [
        f"{name} {markup.inline(facts[name])}"
        for name in _FACTS
        if facts.get(name) is not None
    ]
    if facts.get("size"):
        told.append(f"size {markup.inline(facts['size'])}")
    if facts.get("train"):
        told.append("training")
    steering = facts.get("variables")
    if isinstance(steering, dict):
        told += [
            markup.code(f"{name}={value}")
            for name, value in steering.items()
            if not name.endswith(_CACHES)
        ]
    return ", ".join(told)
