"""The product as functions: each takes a target and returns a saved run."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from pathlib import Path

from torchproof import rules, store
from torchproof.capture import Options, observe
from torchproof.records import Event, Finding, Observation, Part, Run, UserError
from torchproof.target import Target
from torchproof.target import parse as parse_target

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
    progress: Callable[[str], None] = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    """What goes wrong when the target compiles; the run is saved and returned."""
    target = parse_target(target) if isinstance(target, str) else target
    if target.kind == "source":
        raise UserError(
            f"{target.text} is a folder: give a file.py:factory or a script to run"
        )
    options = options or Options()
    left_out = set(skip)
    if unknown := left_out - set(PARTS):
        raise UserError(
            f"--skip: no part {sorted(unknown)[0]!r}; parts are {', '.join(PARTS)}"
        )
    rules.select([], list(select), list(ignore))  # a wrong code fails before the run
    started = datetime.datetime.now()
    if "breaks" in left_out:
        observation = Observation((), {"torch": None, "device": None})
    else:
        observation = observe(target, options, progress)
    found = rules.select(rules.check(observation), list(select), list(ignore))
    return store.save(
        Run(
            id=f"{started:%Y%m%d-%H%M}-{target.name}",
            target=target.text,
            strategy="as-written" if _as_written(observation, target) else "full",
            environment=observation.environment,
            counts=_counts(observation),
            findings=tuple(found),
            parts=_parts(effort, left_out, found, observation),
            command=command,
            started=started.isoformat(timespec="seconds"),
            ending=observation.ending,
            exit_code=observation.exit_code,
            error=observation.error,
        ),
        save_in,
    )


def _as_written(observation: Observation, target: Target) -> bool:
    """Whether the program compiled itself, rather than torchproof for it."""
    if target.kind in {"script", "trace"}:
        return True
    return not any(
        e.data["by_torchproof"] for e in observation.events if e.kind == "wrapper"
    )


def _counts(observation: Observation) -> dict[str, int | None]:
    events = observation.events
    breaks = [
        f
        for f in rules.check(observation)
        if f.kind in {"graph_break", "skipped_frame"}
    ]
    return {
        "calls": observation.calls,
        "compiled_calls": observation.compiled_calls,
        "graphs": sum(event.kind == "graph" for event in events),
        "graph_breaks": len(breaks),
        "skipped_frames": len({_skipped(e) for e in events if _skipped(e)}),
        "recompiles": sum(event.kind == "recompile" for event in events),
        "cudagraph_skips": None,
    }


def _skipped(event: Event) -> tuple[str, int] | None:
    """The function a frame belonged to that Dynamo gave up on."""
    if event.function is None or not (
        event.data.get("skips")
        or (event.kind == "compile_failure" and not event.data.get("raised"))
    ):
        return None
    return event.function.file, event.function.line


def _parts(
    effort: str, left_out: set[str], found: list[Finding], observation: Observation
) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name in PARTS:
        if name in left_out:
            parts[name] = Part("skipped", "left out with --skip")
        elif name not in EFFORTS[effort]:
            parts[name] = Part("skipped", f"not part of --effort {effort}")
        elif name != "breaks":
            parts[name] = Part("skipped", "not available in this version")
        elif observation.error or observation.ending != "finished":
            parts[name] = Part(
                "failed", observation.error or f"ended by {observation.ending}"
            )
        elif any(finding.status == "open" for finding in found):
            parts[name] = Part("found", f"{len(found)} findings")
        else:
            parts[name] = Part("passed")
    return parts
