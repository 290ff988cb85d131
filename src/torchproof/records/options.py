"""The options of the verbs: names, types, choices, help and defaults, written once.

`api` takes them as keywords, the command line as flags. Those that only the command
line has are in `cli.commands`; those of `loadtest` are in `load_options`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torchproof.records import option_values as values
from torchproof.records.mappings import Keywords
from torchproof.records.objective import Objective
from torchproof.records.option import option
from torchproof.records.user_error import UserError

if TYPE_CHECKING:
    from torchproof.records.run import Run

EFFORTS = ("static", "quick", "normal", "full")
WRAPS = ("ddp", "fsdp2", "tp", "tp+fsdp2")
ARTIFACTS = ("caches", "aoti")
INCLUDED = ("source", "weights")
Effort = Literal["quick", "normal", "full"]

_running = partial(option, group="how to run it", for_agents=True)
_scope = partial(option, group="what to check", for_agents=True)
_compared = partial(option, group="what to compare")
_measuring = partial(option, group="how to measure")
_ranked = partial(option, group="several ranks")
_fixed = partial(option, group="what to fix", for_agents=True)
_written = partial(option, group="what to write", exclusive=True)
_sought = partial(option, group="what to find")
_search = partial(option, group="how to search, and where to write the recipe")
_repro = partial(option, group="for repro")
_deploy = partial(option, group="for deploy")


def _wrap() -> Any:
    text = "what wraps the model of a factory on each rank"
    return _ranked(None, text, choices=WRAPS)


@dataclass(frozen=True)
class Options:
    """The options for running a target, which all verbs share."""

    compile: Keywords = _running(
        {},
        "arguments for torch.compile",
        "KEY=VALUE,...",
        read=values.compile_arguments,
    )
    as_written: bool = _running(False, "the target calls torch.compile itself")
    train: bool = _running(False, "run a loss and backward() after each call")
    device: str | None = _running(
        None,
        "device for the model and its inputs (default for workloads: the GPU, if there"
        " is one)",
        choices=("cpu", "cuda"),
    )
    size: str | None = _running(
        None, "size of a workload (default on a CPU: tiny; see check --list)", "NAME"
    )
    timeout_s: float | None = _running(
        None,
        "stop the target after S seconds",
        "S",
        flag="--timeout",
        read=values.seconds,
    )
    quiet: bool = option(
        False, "hide progress and the target's output", flag="-q", group="output"
    )
    overlay: str | None = None  # the file of an overlay, for children to apply


@dataclass(frozen=True)
class RankOptions:
    """How many ranks to start on this machine, and how."""

    count: int = _ranked(
        0,
        "start N ranks with torch's launcher, observe each, and compare them",
        "N",
        flag="--ranks",
        read=values.whole,
    )
    launcher: tuple[str, ...] = _ranked(
        (),
        'options for torch\'s launcher: "--nnodes 2 --rdzv-endpoint host:29500"; one'
        " without a space needs an equals sign: --launcher=--standalone",
        "OPTIONS",
        read=values.words,
    )
    wrap: str | None = _wrap()

    @property
    def spans_nodes(self) -> bool:
        """Whether the launcher joins launchers on other machines."""
        words = [part for word in self.launcher for part in word.split("=", 1)]
        pairs = itertools.pairwise(words)
        return any(word == "--nnodes" and n != "1" for word, n in pairs)

    @property
    def command(self) -> tuple[str, ...]:
        """The options of torch's launcher; by default all ranks are on this machine."""
        where = self.launcher or ("--standalone",)
        return (*where, f"--nproc-per-node={self.count}")


@dataclass(frozen=True)
class CheckOptions:
    """What `check` looks for."""

    effort: str = _scope(
        "normal",
        "static: read the source; quick: breaks and recompiles; normal: also measure;"
        " full: every part (default: normal)",
        choices=EFFORTS,
    )
    skip: Sequence[str] = _scope(
        (), "parts of the check to skip", "PARTS", read=values.names
    )
    select: Sequence[str] = _scope(
        (), "report only these codes or prefixes", "CODES", read=values.names
    )
    ignore: Sequence[str] = _scope(
        (), "do not report these codes or prefixes", "CODES", read=values.names
    )
    baseline: Run | str | None = _scope(
        None, "earlier run to compare with (default: the latest of this target)", "RUN"
    )


@dataclass(frozen=True)
class FixOptions:
    """What `fix` may do."""

    effort: str = _fixed(
        "normal",
        "above quick, generated code is compared and timed; full also fixes what"
        " settles by itself (default: normal)",
        choices=EFFORTS[1:],
    )
    unsafe: bool = _fixed(
        False,
        "also fixes that change something besides the values while compiling: the"
        " random numbers, a log line, a check, a mask that masks nothing",
    )
    select: tuple[str, ...] = _fixed(
        (), "fix only findings with these codes or prefixes", "CODES", read=values.names
    )
    yes: bool = _fixed(
        False,
        "run a script again for each proof although it writes files or takes longer"
        " than a minute",
    )
    write: bool = _written(
        False, "apply the verified fixes to your files", for_agents=True
    )
    patch: str | os.PathLike[str] | None = _written(
        None,
        "write fixes of library code into DIR, for torchproof.apply_patches(DIR)",
        "DIR",
    )


@dataclass(frozen=True)
class BenchOptions:
    """What to measure, by default the default strategies, and how long."""

    strategies: tuple[str, ...] = _compared(
        (),
        "eager, full, core:METHOD, regional, nested; append +graph to capture the step"
        " in one CUDA graph, or :MODE, :fullgraph, :dynamic, :static, :marks (default:"
        " eager,full,regional; on CUDA also full:reduce-overhead,"
        " full+graph,regional+graph)",
        "NAMES",
        read=values.names,
        for_agents=True,
    )
    modes: bool = _compared(False, "compare all modes of torch.compile")
    latency: bool = _compared(
        False, "compare first calls of full, regional, and core:METHOD if given"
    )
    guards: bool = _compared(
        False, "measure what guards cost per call, and ways to check fewer"
    )
    ablate: tuple[tuple[str, Any], ...] = _compared(  # value None: flip the switch
        (),
        "change Inductor settings, one by one and all: 'max_autotune;NAME=VALUE'",
        "SWITCHES",
        read=values.ablation,
    )
    batch: tuple[int, ...] = _compared(
        (),
        "batch sizes for the factory, in this order: 4,8,6,1",
        "SIZES",
        read=values.sizes,
    )
    sequence: tuple[int, ...] = _compared(
        (),
        "sequence lengths for the factory, in this order: 128,160,512",
        "LENGTHS",
        read=values.sizes,
    )
    backends: tuple[str, ...] = _compared(
        (),
        "compare backends, to find the layer that fails: eager,aot_eager,inductor",
        "NAMES",
        read=values.names,
    )
    dtypes: tuple[str, ...] = _compared(
        (),
        "compare precisions: float32,bfloat16",
        "NAMES",
        flag="--dtype",
        read=values.some_of(*values.NUMBER_TYPES),
    )
    ranks: int | None = _ranked(
        None,
        "run each strategy on N ranks; the slowest rank counts",
        "N",
        read=values.whole,
    )
    wrap: str | None = _wrap()
    steps_only: bool = _measuring(
        False,
        "time steps, not first calls: all strategies compile at the same time, and"
        " breaks are not counted",
    )
    effort: str = _measuring(
        "normal",
        "quick: one process per strategy and half the sampling time, no warm start;"
        " full: five processes, for intervals that cover them (default: normal)",
        choices=EFFORTS[1:],
        for_agents=True,
    )
    seconds: float | None = _measuring(
        None,
        "sampling time per strategy (default: 2.4, or as --effort says)",
        "S",
        read=values.seconds,
    )
    repeats: int | None = _measuring(
        None,
        "fresh processes per strategy (default: 2, or as --effort says); 1 measures no"
        " warm start",
        "N",
        read=values.one_to_nine,
    )
    profile: bool = _measuring(
        False, "save Chrome traces, graphs and generated code with the run"
    )

    def __post_init__(self) -> None:
        if self.steps_only and self.latency:
            raise UserError(
                "--latency compares first calls, which --steps-only leaves out"
            )

    @property
    def names_strategies(self) -> bool:
        flags = (self.modes, self.latency, self.guards, self.ablate, self.backends)
        return bool(self.strategies or any(flags))

    @property
    def shapes(self) -> tuple[Mapping[str, int], ...]:
        """Input shapes in the order of measuring; the first one starts cold."""
        swept = [{"batch": size} for size in self.batch]
        swept += [{"sequence": length} for length in self.sequence]
        return tuple(swept) or ({},)


@dataclass(frozen=True)
class TuneOptions:
    """The options of a search; `names` limits it to these strategies."""

    objective: Objective = _sought(
        Objective(),
        "what to minimise: step, first (the first call, among strategies faster than"
        " eager), memory, or steps:N, the time of N steps with compilation (default:"
        " step)",
        "NAME",
        read=Objective.parse,
    )
    budget_s: float = _sought(
        600.0,
        "time limit of the search: 90s, 10m, 1h (default: 10m)",
        "TIME",
        flag="--budget",
        read=values.time_limit,
    )
    effort: Effort = _sought(
        "normal",
        "how many candidates to try: quick 4, normal 8, full all that apply (default:"
        " normal)",
        choices=EFFORTS[1:],
    )
    least: float = _sought(  # times as fast as eager, as in bench
        1.05,
        "least gain over eager for a recipe (default: 1.05)",
        "X",
        flag="--min-gain",
        read=values.factor,
    )
    names: tuple[str, ...] = _sought(
        (),
        "search only among these",
        "NAMES",
        flag="--strategies",
        read=values.names,
    )
    resume: bool = _search(
        False, "reuse trials of the last search with the same target, code and machine"
    )
    ray: str | None = _search(
        None, "run trials on this Ray cluster (extra ray)", "ADDRESS"
    )
    ranks: int | None = _ranked(
        None,
        "run each trial on N ranks; the slowest rank counts",
        "N",
        read=values.whole,
    )
    wrap: str | None = _wrap()


@dataclass(frozen=True)
class ReproOptions:
    """The user's options for a repro pack."""

    select: tuple[str, ...] = _repro(
        (),
        "finding to reproduce: GB101, or GB101@model.py:42 (default: the worst)",
        "CODES",
        read=values.names,
    )
    effort: str = _repro(
        "normal",
        "how thoroughly to check a TARGET first (default: normal)",
        choices=EFFORTS[1:],
    )
    minify: bool = _repro(
        False, "shrink the program as long as it fails in the same way"
    )
    budget_s: float = _repro(
        120.0,
        "time limit for shrinking: 90s, 5m (default: 2m)",
        "TIME",
        flag="--budget",
        read=values.time_limit,
    )
    include: Collection[str] = _repro(
        (),
        "also include: source, weights",
        "KINDS",
        read=values.some_of(*INCLUDED),
    )


@dataclass(frozen=True)
class DeployOptions:
    """The kind of artifact, the recipe or strategy to compile with, the private key.

    With `ranks`, the pack is built and verified by so many ranks on this machine. With
    `wrap`, each of them divides the model as the service does.
    """

    recipe: str | None = _deploy(
        None, "recipe to compile with, written by torchproof tune", "FILE"
    )
    strategy: str | None = _deploy(
        None, "strategy to compile with, without a recipe (default: full)", "NAME"
    )
    artifact: str = _deploy(
        "caches",
        "caches: compile caches for the model's code; aoti: a package that does not"
        " need that code (default: caches)",
        choices=ARTIFACTS,
    )
    key: bytes | None = None
    ranks: int | None = _deploy(
        None,
        "build and verify on N ranks: for a model with collectives in its code",
        "N",
        read=values.whole,
    )
    wrap: str | None = _deploy(
        None,
        "with tp, the ranks divide the layers of the model by its plan; ddp needs no"
        " pack of its own, and fsdp2 has none",
        choices=("tp", "ddp", "fsdp2", "tp+fsdp2"),
    )
