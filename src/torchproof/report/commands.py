"""Commands that work when pasted, for the target of a run and run as it was run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from torchproof.records import Finding, Run

# Flags of `check` that say how the target is run, and take a value or none.
HOW = ("--compile", "--device", "--size", "--timeout")
HOW_SWITCHES = ("--as-written", "--train")
# Flags of `check` with a value that say what is looked at or how it is shown.
OTHERS = ("--effort", "--skip", "--select", "--ignore", "--fail-on", "--baseline")
SHOWN = ("--format", "-o")

_MEASURED = ("baseline", "batch", "sequence", "latency", "guards")
PARTS = ("static", "breaks", *_MEASURED, "lifetimes")
# Which parts a rule needs that is not about part breaks, by the start of its code.
NEEDS = {
    "NM": ("baseline",),
    "SP50": ("baseline",),
    "SP511": ("baseline",),
    "SP512": ("baseline", "latency"),
    "SP513": ("baseline",),
    "SP521": ("baseline",),
    "SP531": ("batch", "sequence"),
    "SP541": ("baseline", "guards"),
    "CG": ("lifetimes",),
    "HS": ("lifetimes",),
}
ABLATED = "max_autotune;coordinate_descent_tuning;epilogue_fusion"


def kind(target: str) -> str:
    """What a target is, by its text: workload, factory, script, trace or source."""
    scheme = target.partition(":")[0]
    if scheme in {"workload", "trace"}:
        return scheme
    if re.search(r":[^\W\d]\w*$", target):
        return "factory"
    return "script" if target.endswith(".py") else "source"


def _words(run: Run) -> list[str]:
    try:
        return shlex.split(run.command)[1:]
    except ValueError:  # no command line wrote this
        return []


def how(run: Run) -> tuple[list[str], list[str]]:
    """The flags that say how the target was run, and a script's own arguments."""
    words = _words(run)
    cut = words.index("--") if "--" in words else len(words)
    own, script = words[:cut], words[cut + 1 :]
    kept: list[str] = []
    position = 0
    while position < len(own):
        name, equals, _ = own[position].partition("=")
        wide = 2 if name in (*HOW, *OTHERS, *SHOWN) and not equals else 1
        if name in (*HOW, *HOW_SWITCHES):
            kept += own[position : position + wide]
        position += wide
    if words:
        return kept, script
    return list(_asked(run)), list(run.options.get("arguments", ()))


def _asked(run: Run) -> Iterator[str]:
    """The flags that would have done what a call from Python did."""
    asked = run.options
    if asked.get("compile"):
        given = ",".join(f"{name}={value}" for name, value in asked["compile"].items())
        yield from ("--compile", given)
    for name in ("as_written", "train"):
        if asked.get(name):
            yield f"--{name.replace('_', '-')}"
    for name in ("device", "size"):
        if asked.get(name):
            yield from (f"--{name}", str(asked[name]))


def effort(run: Run) -> str:
    """How much was checked: on record, else a part that was left out names it."""
    if run.options.get("effort"):
        return str(run.options["effort"])
    for part in run.parts.values():
        found = re.fullmatch(r"not part of --effort (\w+)", part.why)
        if found:
            return found[1]
    return "full"


def of(run: Run, verb: str, *flags: str) -> str:
    """A verb on the run's target, run in the same way."""
    kept, script = how(run)
    tail = ["--", *script] if script else []
    return shlex.join(["torchproof", verb, run.target, *kept, *flags, *tail])


def static(run: Run, *flags: str) -> str:
    """Reading alone: how the target would be run says nothing there."""
    return shlex.join(["torchproof", "check", run.target, "--effort", "static", *flags])


def verification(finding: Finding, run: Run) -> str:
    """Runs the part that shows the finding, and ends with 0 once it is gone."""
    alone = ("--select", finding.code, "--fail-on", "low")
    if finding.origin == "static":
        return static(run, *alone)
    needed = next((NEEDS[s] for s in NEEDS if finding.code.startswith(s)), None)
    if needed is None or kind(run.target) == "trace":
        return of(run, "check", "--effort", "quick", *alone)
    left_out = ",".join(name for name in PARTS if name not in needed)
    return of(run, "check", "--effort", "full", "--skip", left_out, *alone)


def measuring(run: Run) -> str | None:
    """What gives the baseline that a run lacks; None where there is no way."""
    form = kind(run.target)
    if form in {"trace", "source"}:
        return None
    return of(run, "bench" if form == "script" else "check")


def ablation(run: Run) -> str | None:
    """What measures Inductor's settings, where they can be set from outside."""
    if kind(run.target) not in {"workload", "factory"} or "--as-written" in how(run)[0]:
        return None
    return of(run, "bench", "--ablate", ABLATED)


def diagnostics(run: Run) -> Iterator[tuple[str, str]]:
    """What to look at next: a sentence, and the command."""
    form = kind(run.target)
    if form == "trace":
        yield "Read the trace again", of(run, "check")
        return
    yield "Read the source and run nothing", static(run)
    if form == "source":
        return
    everything = of(run, "check", "--effort", "full")
    yield "Everything: breaks, times, shapes, guards, lifetimes", everything
    yield "What compiling is worth", of(run, "bench")
    if form != "script" and "--as-written" not in how(run)[0]:
        yield "Which mode of torch.compile is fastest", of(run, "bench", "--modes")
        yield "What guards cost a call", of(run, "bench", "--guards")
        yield (
            "What the first call costs, whole or by block",
            of(run, "bench", "--latency"),
        )
        layers = "eager,aot_eager,inductor"
        yield "Which layer breaks it", of(run, "bench", "--backends", layers)
    yield "Torch's own record of compiling, for tlparse and others", recorded(run)
    yield "The same record, read by torchproof", "torchproof check trace:trace"


def recorded(run: Run) -> str:
    if kind(run.target) == "script":
        script = shlex.join(["python", run.target, *how(run)[1]])
        return f"TORCH_TRACE=trace {script}"
    return f"TORCH_TRACE=trace {of(run, 'check', '--effort', 'quick')}"
