"""Command lines to paste: other verbs on the target of a run, with its flags.

Takes a `Run`, returns shell commands with the same target, flags and arguments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from torchproof.records import Finding, Run
from torchproof.records.option import options_of
from torchproof.records.options import (
    BenchOptions,
    CheckOptions,
    FixOptions,
    Options,
    RankOptions,
    TuneOptions,
)

# Options that set how the target runs, by their flags, and those that start several
# ranks: `bench` and `tune` have all but the launcher.
_RUN = {o.flag: o for o in options_of(Options) if o.key != "quiet"}
_RANKS = {o.flag: o for o in options_of(RankOptions)}

# The options that each verb takes as keywords.
_KEYWORDS = {
    "check": CheckOptions,
    "fix": FixOptions,
    "bench": BenchOptions,
    "tune": TuneOptions,
}
_MEASURED = ("baseline", "batch", "sequence", "latency", "guards")
PARTS = ("static", "breaks", *_MEASURED, "lifetimes")
_AFTER_BASELINE = {"latency", "guards"}  # parts that use what part baseline measures
ABLATED = "max_autotune;coordinate_descent_tuning;epilogue_fusion"


def again(run: Run) -> str | None:
    """The command of a run, without files that it refuses to overwrite.

    None if the run was not made by a command.
    """
    words = _words(run)
    if not words:
        return None
    cut = words.index("--") if "--" in words else len(words)
    kept, position = [], 0
    while position < cut:
        name, equals, _ = words[position].partition("=")
        if name not in ("-o", "--trace"):
            kept.append(words[position])
        elif not equals:
            position += 1
        position += 1
    return shlex.join(["torchproof", *kept, *words[cut:]])


def kind(target: str) -> str:
    """The kind of a target, from its text: workload, factory, live, script..."""
    scheme = target.partition(":")[0]
    if scheme in {"workload", "trace", "live"}:
        return scheme
    if re.search(r":[^\W\d]\w*$", target):
        return "factory"
    return "script" if target.endswith(".py") else "source"


def _words(run: Run) -> list[str]:
    try:
        return shlex.split(run.command)[1:]
    except ValueError:  # no command line wrote this
        return []


def flags_of(run: Run, verb: str = "") -> tuple[list[str], list[str]]:
    """The flags that set how the target ran, and the arguments of a script.

    For verbs that start ranks they include how many it ran on.
    """
    on_ranks = _on_ranks(run, verb)
    repeated = _RUN | (_RANKS if on_ranks else {})
    if verb != "check":
        repeated.pop("--launcher", None)
    as_written = verb == "fix" and kind(run.target) == "script"
    if as_written:
        repeated = {"--timeout": _RUN["--timeout"]}
    words = _words(run)
    cut = words.index("--") if "--" in words else len(words)
    verb_words, script = words[:cut], words[cut + 1 :]
    flags: list[str] = []
    position = 0
    while position < len(verb_words):
        name, equals, _ = verb_words[position].partition("=")
        option = repeated.get(name)
        count = 2 if option and not option.is_switch and not equals else 1
        if option:
            flags += verb_words[position : position + count]
        position += count
    # The command that writes the fixes of a saved run has no flags of its target.
    delivers_saved = run.verb == "fix" and run.target not in words
    if words and not delivers_saved:
        return flags, script
    flags = [] if as_written else [*_flags_of_call(run)]
    flags += _ranks_of_call(run) if on_ranks else ()
    return flags, list(run.options.get("arguments", ()))


def _flags_of_call(run: Run) -> Iterator[str]:
    """The flags that are equivalent to the options of a call from Python."""
    options = run.options
    if compile_options := options.get("compile"):
        pairs = [f"{name}={value}" for name, value in compile_options.items()]
        yield from ("--compile", ",".join(pairs))
    for name in ("as_written", "train"):
        if options.get(name):
            yield f"--{name.replace('_', '-')}"
    for name in ("device", "size"):
        if options.get(name):
            yield from (f"--{name}", str(options[name]))


def _on_ranks(run: Run, verb: str) -> bool:
    """Whether the verb can run the target on several ranks."""
    measures = verb in ("bench", "tune") and kind(run.target) != "script"
    return verb == "check" or measures


def _ranks_of_call(run: Run) -> Iterator[str]:
    for name in ("ranks", "wrap"):
        value = run.options.get(name) or run.environment.get(name)
        if value:
            yield from (f"--{name}", str(value))


def effort(run: Run) -> str:
    """The effort of a check: from its options, else from what it left out."""
    if named := run.options.get("effort"):
        return str(named)
    skipped = [part.why for part in run.parts.values() if part.limit == "effort"]
    return skipped[0].split()[-1] if skipped else "full"


def of(run: Run, verb: str, *flags: str) -> str:
    """A verb on the run's target, with the flags and arguments of the run."""
    run_flags, script = flags_of(run, verb)
    if kind(run.target) == "live":
        return _python_call(verb, [*run_flags, *flags])
    tail = ["--", *script] if script else []
    return shlex.join(["torchproof", verb, run.target, *run_flags, *flags, *tail])


def _python_call(verb: str, flags: list[str]) -> str:
    """The call that is equivalent to a command line, for an object of a session."""
    arguments = ["model", "calls"]
    known = {o.flag: o for o in (*options_of(Options), *options_of(_KEYWORDS[verb]))}
    words = iter(flags)
    for flag in words:
        option = known.get(flag)
        if option is None:  # --fail-on sets the exit code
            next(words)
            continue
        value = not option.default if option.is_switch else option.read(next(words))
        shown = list(value) if isinstance(value, tuple) else value
        arguments.append(f"{option.key}={shown!r}")
    return f"torchproof.{verb}({', '.join(arguments)})"


def static(run: Run, *flags: str) -> str:
    """A static check, which needs no flags about how the target runs."""
    if kind(run.target) == "live":
        return _python_call("check", ["--effort", "static", *flags])
    return shlex.join(["torchproof", "check", run.target, "--effort", "static", *flags])


def verification(finding: Finding, run: Run, *output: str) -> str:
    """A check of the parts that show the finding; it exits with 0 once it is gone.

    What a load test found, only another load test can show. `output` are flags that set
    how the check is printed.
    """
    if run.verb == "loadtest":
        return run.command or of(run, "loadtest")
    output = () if kind(run.target) == "live" else output
    alone = ("--select", finding.code, "--fail-on", "low", *output)
    if finding.origin == "static":
        return static(run, *alone)
    rule = run.rules.get(finding.code)
    needed = set(rule.parts if rule else ("breaks",))
    needed |= {"baseline"} if needed & _AFTER_BASELINE else set()
    if needed <= {"static", "breaks"} or kind(run.target) == "trace":
        return of(run, "check", "--effort", "quick", *alone)
    left_out = ",".join(name for name in PARTS if name not in needed)
    return of(run, "check", "--effort", "full", "--skip", left_out, *alone)


def measuring(run: Run) -> str | None:
    """The command that measures the missing baseline; None if it is not possible."""
    form = kind(run.target)
    if form in {"trace", "source"}:
        return None
    return of(run, "bench" if form == "script" else "check")


def ablation(run: Run) -> str | None:
    """The command that measures Inductor settings; None if they cannot be set."""
    if (
        kind(run.target) not in {"workload", "factory"}
        or "--as-written" in flags_of(run)[0]
    ):
        return None  # a live object would need a long call
    return of(run, "bench", "--ablate", ABLATED)


def can_prove(run: Run) -> bool:
    """Whether `fix` can run the target, as often as it needs to."""
    again = kind(run.target) in {"workload", "factory", "live", "script"}
    here = "breaks" in run.parts and run.parts["breaks"].limit == "process"
    return again and not here


def fixable(run: Run) -> list[Finding]:
    """The open findings for which `fix` has edits to try; empty if it cannot run."""
    if not can_prove(run) or effort(run) == "static":
        return []
    found = [f for f in run.findings if f.status == "open" and f.kind != "hazard"]
    editable = {code for code, rule in run.rules.items() if rule.has_edits}
    return [finding for finding in found if finding.marks or finding.code in editable]


def diagnostics(run: Run) -> Iterator[tuple[str, str]]:
    """Suggested next commands, each with a description."""
    form = kind(run.target)
    if form == "trace":
        yield "Check the trace again", of(run, "check")
        return
    yield "Check the source without running it", static(run)
    if form == "source":
        return
    if fixable(run):
        yield "Find edits that cure findings, with proof", of(run, "fix")
    everything = of(run, "check", "--effort", "full")
    yield "Run all checks: breaks, times, shapes, guards, lifetimes", everything
    yield "Measure eager and compiled", of(run, "bench")
    if form != "script" and "--as-written" not in flags_of(run)[0]:
        yield "Compare the modes of torch.compile", of(run, "bench", "--modes")
        yield "Measure the guard overhead of a call", of(run, "bench", "--guards")
        yield (
            "Measure the first call, for the whole model and by block",
            of(run, "bench", "--latency"),
        )
        layers = "eager,aot_eager,inductor"
        yield "Find the layer that fails", of(run, "bench", "--backends", layers)
    if form == "live":
        return
    yield "Write torch's compile trace, for tlparse and other tools", recorded(run)
    yield "Check the same trace with torchproof", "torchproof check trace:trace"


def recorded(run: Run) -> str:
    if kind(run.target) == "script":
        script = shlex.join(["python", run.target, *flags_of(run)[1]])
        return f"TORCH_TRACE=trace {script}"
    return f"TORCH_TRACE=trace {of(run, 'check', '--effort', 'quick')}"
