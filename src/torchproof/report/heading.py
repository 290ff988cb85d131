"""The head of a Markdown report: target, time, mode, command and environment."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.records import Run
from torchproof.report import commands, markup, run_words

_MACHINE = ("threads", "cores", "machine", "platform")
_FACTS = ("torch", "cuda", "python", "gpu", "device", *_MACHINE)
_READ = {"static"}
STATIC = "static (source only)"
_CACHES = (
    "_CACHE_DIR",
    "_REMOTE_CACHE",
)  # not settings of the compiler


def heading(run: Run, title: str) -> Iterator[str]:
    yield f"# {title}: {markup.code(run.target)}"
    yield markup.bullets(f"**{name}:** {text}" for name, text in _facts(run))
    if why := run_words.incomplete(run):
        yield f"Incomplete: {markup.inline(why)}. Results so far follow."
    for text in run_words.failed_parts(run):
        yield f"{markup.inline(text[:1].upper() + text[1:])}."


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    yield "Target", markup.code(run.target)
    when = markup.inline(_moment(run.started))
    if when and run.verb in ("bench", "tune", "loadtest"):
        yield "Measured", when
    elif when and run.verb == "fix":
        yield "Proved", when
    elif when:
        yield "Analysed", when
        yield "Last verified", f"{when}, by this run"
    if run.verb == "check":
        effort = f", effort {commands.effort(run)}" if run.parts else ""
        yield "Mode", f"{mode(run)}{effort}"
    yield "Entry point", _entry(run)
    if run.strategy.strip("-"):
        yield "Strategy", markup.inline(run.strategy)
    if where := _environment(run):
        yield "Environment", where
    if run.command:
        yield "Command", markup.code(run.command)
    yield "Run", markup.code(run.id)
    if run.baseline:
        before = markup.code(run.baseline.id or "")
        since = run.baseline.started
        text = f"run {before}"
        text += f" of {markup.inline(_moment(since))}" if since else ""
        other = run.baseline.target or run.target
        text += f", target {markup.code(other)}" if other != run.target else ""
        yield "Compared with", text


def mode(run: Run) -> str:
    """Whether the check read the source, ran the target, or both."""
    parts = {name for name, part in run.parts.items() if part.status != "skipped"}
    if not parts:
        return "no part ran"
    if parts <= _READ:
        return STATIC
    return "static and dynamic" if parts & _READ else "dynamic (source not read)"


def _moment(text: str) -> str:
    return text.replace("T", " ")


def _entry(run: Run) -> str:
    form = commands.kind(run.target)
    name = run.target.partition(":")[2]
    if form == "workload":
        return f"the bundled workload {markup.code(name)}"
    if form == "trace":
        return f"a recorded trace in {markup.code(name)}"
    if form == "live":
        return f"the object {markup.code(name)} of a Python session"
    if form == "factory":
        where, _, factory = run.target.rpartition(":")
        return f"{markup.code(f'{factory}()')} in {markup.code(where)}"
    if form == "script" and mode(run) != STATIC:
        return f"{markup.code(run.target)}, run as a script"
    return markup.code(run.target)


def _environment(run: Run) -> str:
    facts = run.environment
    items = [
        f"{name} {markup.inline(str(value))}"
        for name in _FACTS
        if (value := facts.get(name)) is not None
    ]
    if ranks := run_words.measured_ranks(run):
        items.append(f"{markup.inline(ranks)}; the slowest rank of each pass counts")
    if facts.get("size"):
        items.append(f"size {markup.inline(facts['size'])}")
    if facts.get("train"):
        items.append("training")
    steering = facts.get("variables")
    if isinstance(steering, dict):
        items += [
            markup.code(f"{name}={value}")
            for name, value in steering.items()
            if not name.endswith(_CACHES)
        ]
    return ", ".join(items)
