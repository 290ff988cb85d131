"""The command of each verb: a record of its options, whose docstring is its help.

Fields and groups of options stand in the order of the bases, the last base first. The
options that the Python API has, too, are in `records`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from torchproof.records.load_options import LoadOptions
from torchproof.records.option import argument, nested, option
from torchproof.records.options import (
    BenchOptions,
    CheckOptions,
    DeployOptions,
    FixOptions,
    Options,
    RankOptions,
    ReproOptions,
    TuneOptions,
)
from torchproof.records.severity import SEVERITIES

FORMATS = ("text", "json", "md", "html", "sarif", "github", "gitlab", "agent")
PLAIN_FORMATS = FORMATS[:3]
COMPARISON_FORMATS = (*PLAIN_FORMATS, "agent")
SHELLS = ("bash", "zsh", "fish")
_FORMS = "workload:NAME, file.py:factory, package.module:factory"
_RUN = "id, start of an id, directory or JSON file"

_output = partial(option, group="output")


def _format(choices: tuple[str, ...]) -> Any:
    return _output("text", "output format (default: text)", choices=choices)


def _target(more: str) -> Any:
    return argument(MISSING, f"{_FORMS}{more}", "TARGET", for_agents=True)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line: besides its options, its words, and what shows progress.

    `script` has the words behind `--`, and `flags` the names of the flags it has.
    """

    EXAMPLE: ClassVar[str]
    RUNS_SCRIPTS: ClassVar[bool] = False
    FOR_AGENTS: ClassVar[str] = ""  # adds to the help of its tool; "": it is none

    script: tuple[str, ...] = ()
    line: str = ""
    flags: tuple[str, ...] = ()
    display: Any = None

    @classmethod
    def verb(cls) -> str:
        return cls.__name__.lower()


@dataclass(frozen=True, kw_only=True)
class Talk(Command):
    """How much is printed, in which format."""

    format: str = _format(FORMATS)
    quiet: bool = _output(False, "hide progress and the target's output", flag="-q")
    verbose: bool = _output(False, "show all evidence", flag="-v")


@dataclass(frozen=True, kw_only=True)
class Output(Talk):
    """Where an answer is written."""

    output: str | None = _output(
        None, "write to FILE instead of stdout", "FILE", flag="-o"
    )


@dataclass(frozen=True, kw_only=True)
class RunOutput(Output):
    """How a run is shown."""

    no_source: bool = _output(False, "leave out source code")


@dataclass(frozen=True, kw_only=True)
class _Traced(RunOutput):
    """How a run is shown, and its timeline."""

    trace: str | None = _output(
        None,
        "also write a timeline of compilations, calls and ranks, for Perfetto",
        "FILE",
    )


@dataclass(frozen=True, kw_only=True)
class _Scope(CheckOptions):
    """What is checked, and what the exit code says."""

    fail_on: str = option(
        "high",
        "exit 1 on an open finding of this severity or worse (default: high)",
        choices=(*SEVERITIES, "never"),
        group="what to check",
        for_agents=True,
    )


@dataclass(frozen=True, kw_only=True)
class _Ranked:
    """On how many ranks the target runs."""

    ranks: RankOptions | None = nested(RankOptions)


@dataclass(frozen=True, kw_only=True)
class Check(_Traced, _Scope, _Ranked, Options):
    """Run a target and list what goes wrong when it compiles, where, and the fix."""

    EXAMPLE = "torchproof check train.py -- --epochs 1"
    RUNS_SCRIPTS = True
    FOR_AGENTS = (
        "Begin with effort quick. Exit code 1: an open finding of severity fail_on or"
        " worse. Edits nothing."
    )

    target: str = argument(
        "",
        f"{_FORMS}, script.py [-- args...], trace:DIR; with --effort static, any file"
        " or directory",
        "TARGET",
        for_agents=True,
    )
    list: bool = option(False, "list the bundled workloads and exit")


@dataclass(frozen=True, kw_only=True)
class _Measured(BenchOptions):
    """What is measured, and what it is compared with."""

    baseline: str | None = option(
        None,
        "exit 1 if this run is worse than RUN",
        "RUN",
        group="how to measure",
        for_agents=True,
    )


@dataclass(frozen=True, kw_only=True)
class Bench(_Traced, Options, _Measured):
    """Measure strategies against eager: speed, compile time, memory, numerics."""

    EXAMPLE = "torchproof bench workload:gpt --modes"
    RUNS_SCRIPTS = True
    FOR_AGENTS = (
        "Takes a minute or more; other calls wait, because they would disturb the"
        " times."
    )

    target: str = _target(", script.py [-- args...]")


@dataclass(frozen=True, kw_only=True)
class Loadtest(RunOutput, Options, LoadOptions):
    """Serve requests on a timetable: what users wait for under load, and why."""

    EXAMPLE = "torchproof loadtest workload:gpt --rate 20 --slo p99=50ms"

    target: str = _target("")
    baseline: str | None = option(
        None,
        "exit 1 if a strategy is worse than in RUN, a load test of the same load",
        "RUN",
    )
    trace: str | None = option(
        None, "also write the timeline as trace events, for Perfetto", "FILE"
    )


@dataclass(frozen=True, kw_only=True)
class Tune(RunOutput, Options, TuneOptions):
    """Search for the fastest strategy with the same outputs; write a recipe."""

    EXAMPLE = "torchproof tune workload:gpt --budget 5m"

    target: str = _target("")
    recipe: str = option(
        "torchproof.toml",
        "where to write the recipe (default: torchproof.toml)",
        "FILE",
        group="how to search, and where to write the recipe",
    )
    overwrite: bool = option(
        False,
        "replace an existing recipe",
        group="how to search, and where to write the recipe",
    )


@dataclass(frozen=True, kw_only=True)
class Fix(RunOutput, Options, FixOptions):
    """Find edits that cure findings, prove them, and show them as a diff."""

    EXAMPLE = "torchproof fix train.py -- --epochs 1"
    RUNS_SCRIPTS = True
    FOR_AGENTS = (
        "Returns diffs and what is left. Writes nothing unless write is true. Exit code"
        " 1: a proved edit is not written yet. Ask the user before unsafe, and before a"
        " script, which runs again for each proof."
    )

    target: str = argument(
        MISSING,
        f"{_FORMS}, script.py [-- args...], which runs again for each proof; with"
        " --write or --patch also a run of fix, which is not proved again",
        "TARGET",
        for_agents=True,
    )


@dataclass(frozen=True, kw_only=True)
class SignedDeploy(DeployOptions):
    """The options for a deploy pack, with the file of the key."""

    key_file: str | None = option(
        None,
        "sign the pack with this private Ed25519 key; loading verifies it with the"
        " public key",
        "FILE",
        flag="--key",
        group="for deploy",
    )


@dataclass(frozen=True, kw_only=True)
class _Packed:
    """What a pack is for."""

    purpose: Literal["repro", "deploy"] = option(
        MISSING,
        "repro: an archive that reproduces a failure and needs only torch; deploy: a"
        " directory that torchproof.load starts from without compiling",
        flag="--for",
        choices=("repro", "deploy"),
    )
    repro: ReproOptions | None = nested(ReproOptions)
    deploy: SignedDeploy | None = nested(SignedDeploy)


@dataclass(frozen=True, kw_only=True)
class Pack(Talk, Options, _Packed):
    """Write a self-contained repro of a failure, or a model with its compiled code."""

    EXAMPLE = "torchproof pack train.py:make --for repro"

    what: str = argument(
        MISSING,
        f"{_FORMS}, script.py [-- args...]; for repro also a saved run of check:"
        f" {_RUN}",
        "TARGET | RUN",
    )
    dest: str | None = _output(None, "where to write the pack", "PATH", flag="-o")
    overwrite: bool = _output(False, "replace an existing pack")
    format: str = _format(PLAIN_FORMATS)


@dataclass(frozen=True, kw_only=True)
class Compare(Output):
    """Compare two runs: is B better than A, worse, or not significantly different?"""

    EXAMPLE = "torchproof compare before.json after"
    FOR_AGENTS = "Exit code 1: b is worse."

    a: str = argument(MISSING, f"the earlier run: {_RUN}", "A", for_agents=True)
    b: str = argument(MISSING, f"the run to judge: {_RUN}", "B", for_agents=True)
    threshold: str = option(
        "",
        "what is worse (default: speed=5,memory=5,tail=10,compile=20)",
        "METRIC=PERCENT,...",
    )
    format: str = _format(COMPARISON_FORMATS)


@dataclass(frozen=True, kw_only=True)
class Show(RunOutput):
    """Print a saved run or a pack; with --caches, list torch's compile caches."""

    EXAMPLE = "torchproof show --list"
    FOR_AGENTS = "Prints it from line start on, where an earlier answer was cut."

    run: str | None = argument(
        None,
        "id, start of an id, directory, JSON file or pack (default: latest run)",
        "RUN",
        for_agents=True,
    )
    list: bool = option(False, "list the saved runs")
    caches: bool = option(False, "list torch's compile caches and their size")
    clear: str | None = option(
        None,
        "with --caches: delete the cache NAME, or all of them",
        "NAME",
        const="all",
    )


@dataclass(frozen=True, kw_only=True)
class Log(Command):
    """Print the experiment log, or add a plan, a run or a retrospective."""

    EXAMPLE = 'torchproof log plan "fix the breaks"'
    # Each action with the flags that it takes.
    ACTIONS: ClassVar[dict[str | None, tuple[str, ...]]] = {
        None: ("--list",),
        "add": ("--again",),
        "plan": ("--expect", "--target"),
        "retrospective": ("--again",),
    }

    action: str | None = argument(
        None,
        "the kind of entry to add (default: print the log)",
        "add | plan | retrospective",
        choices=("add", "plan", "retrospective"),
    )
    what: str | None = argument(
        None,
        "add: the run (default: the latest); plan: its text; retrospective: the plan"
        " (default: the last one)",
        "RUN | TEXT | PLAN",
    )
    file: str = option(
        "experiment-log.md",
        "the log, a Markdown file (default: experiment-log.md)",
        "FILE",
    )
    list: bool = option(False, "print one line per entry")
    expect: str = option(
        "",
        "plan: expected results: speed>=1.2,graph_breaks=0,findings.high=0",
        "METRIC>=NUMBER,...",
    )
    target: str = option("", "plan: compare only runs of this target", "TARGET")
    again: bool = option(
        False, "add, retrospective: add it even if the log has it already"
    )


@dataclass(frozen=True, kw_only=True)
class Rule(Command):
    """Explain a rule; without a code, list all rules."""

    EXAMPLE = "torchproof rule GB101"

    code: str | None = argument(None, "code of a rule (default: list all)", "CODE")


@dataclass(frozen=True, kw_only=True)
class Mcp(Command):
    """Serve check, explain, fix, bench and compare to coding agents, over stdio."""

    EXAMPLE = "torchproof mcp --directory ~/project"

    directory: str = option(
        ".",
        "directory of the project, for targets and runs (default: this one)",
        "DIR",
    )


@dataclass(frozen=True, kw_only=True)
class Doctor(Output):
    """Try what torchproof needs on this machine; exit code 1 if something is broken."""

    EXAMPLE = "torchproof doctor --format md"

    format: str = _format(PLAIN_FORMATS)


@dataclass(frozen=True, kw_only=True)
class Completion(Command):
    """Print the script that completes verbs, flags, targets and runs in your shell."""

    EXAMPLE = 'eval "$(torchproof completion bash)"'

    shell: str | None = argument(
        None, "print the script for this shell", " | ".join(SHELLS), choices=SHELLS
    )
    until: str | None = option(
        None,
        "print what may follow this command line; the scripts call this",
        "TEXT",
        flag="--line",
    )


COMMANDS: dict[str, type[Command]] = {
    kind.verb(): kind
    for kind in (
        *(Check, Bench, Loadtest, Tune, Fix, Pack, Compare, Show, Log, Rule, Mcp),
        *(Doctor, Completion),
    )
}
