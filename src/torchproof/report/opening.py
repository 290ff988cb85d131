"""How every report of a run begins: target, time, mode, command and environment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchproof.records import Run
from torchproof.report import commands, numbers, run_words
from torchproof.report.document import (
    Block,
    Code,
    Facts,
    Group,
    Items,
    Paragraph,
    Text,
    Title,
    View,
)

_MACHINE = ("threads", "cores", "machine", "platform")
_FACTS = ("torch", "cuda", "python", "gpu", "device", *_MACHINE)
_BRIEF = ("device", "gpu", "torch", "python", "size")
_MEASURED = ("bench", "tune", "loadtest")
_READ = {"static"}
STATIC = "static (source only)"
_CACHES = ("_CACHE_DIR", "_REMOTE_CACHE")  # not settings of the compiler


def opening(run: Run, title: str, lines: Iterable[str]) -> Iterator[Block]:
    """The title and the facts of a run; `lines` are its first ones on a terminal."""
    facts, why = run.environment, run_words.incomplete(run)
    yield Title(title, run.target, run.verb, run.id)
    yield Facts(tuple(_facts(run)), views=View.PAPER)
    known = [f"{name} {value}" for name in _BRIEF if (value := facts.get(name))]
    yield Paragraph("; ".join([run.id, *known]), "Run", views=View.AGENT)
    early = f"{why}. Results so far follow" if why else ""
    first = [*map(Paragraph, lines)]
    first += [Paragraph(f"{early}.", "Incomplete")] if early else []
    yield Group(tuple(first), views=View.TERMINAL)
    yield Paragraph(f"{early}." if early else "", "Incomplete", views=View.PAPER)
    yield Paragraph(why, "Incomplete", views=View.AGENT)
    failures = tuple(run_words.failures(run))
    yield Items(failures, style="failures", views=View.REVIEW)
    failed = tuple(f"{t[:1].upper()}{t[1:]}." for t in run_words.failed_parts(run))
    yield Group(tuple(map(Paragraph, failed)), views=View.PAPER)


def first_lines(run: Run) -> Iterator[str]:
    """The target, its size, and the environment of the run."""
    facts = run.environment
    device = facts.get("gpu") or facts.get("device")
    text = f"{run.verb} of {run.target}"
    text += f" ({facts['size']})" if facts.get("size") else ""
    text += f" on {device}" if device else ""
    text += f", torch {facts['torch']}" if facts.get("torch") else ""
    if facts.get("threads") and run.verb in _MEASURED:
        text += f", {numbers.amount(facts['threads'], 'thread')}"
        text += " per rank" if facts.get("ranks") else ""
    yield text + (", training" if run.options.get("train") else "")
    if ranks := run_words.measured_ranks(run):
        yield f"{ranks}; the slowest rank of each pass counts"


def _facts(run: Run) -> Iterator[tuple[str, Text]]:
    yield "Target", Code(run.target)
    when = _moment(run.started)
    if when and run.verb in _MEASURED:
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
        yield "Strategy", run.strategy
    if where := tuple(_environment(run)):
        yield "Environment", where
    if run.command:
        yield "Command", Code(run.command)
    yield "Run", Code(run.id)
    if before := run.baseline:
        since = f" of {_moment(before.started)}" if before.started else ""
        text: tuple[str, ...] = ("run ", Code(before.id or ""), since)
        other = before.target or run.target
        text += (", target ", Code(other)) if other != run.target else ()
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


def _entry(run: Run) -> Text:
    form = commands.kind(run.target)
    name = Code(run.target.partition(":")[2])
    if form == "workload":
        return "the bundled workload ", name
    if form == "trace":
        return "a recorded trace in ", name
    if form == "live":
        return "the object ", name, " of a Python session"
    if form == "factory":
        where, _, factory = run.target.rpartition(":")
        return Code(f"{factory}()"), " in ", Code(where)
    if form == "script" and mode(run) != STATIC:
        return Code(run.target), ", run as a script"
    return Code(run.target)


def _environment(run: Run) -> Iterator[str]:
    facts = run.environment
    every = {name: facts.get(name) for name in _FACTS}
    items = [f"{name} {value}" for name, value in every.items() if value is not None]
    if ranks := run_words.measured_ranks(run):
        items.append(f"{ranks}; the slowest rank of each pass counts")
    items += [f"size {facts['size']}"] if facts.get("size") else []
    items += ["training"] if facts.get("train") else []
    yield ", ".join(items)
    steering = facts.get("variables")
    for name, value in steering.items() if isinstance(steering, dict) else ():
        if not name.endswith(_CACHES):
            yield ", "
            yield Code(f"{name}={value}")
