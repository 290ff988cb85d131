"""SP50x: compiled steps that are slower than eager, or no faster.

The events carry the measured numbers; the rules measure nothing. A ratio is eager time
over compiled time, so 0.5 is twice as slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

from torchproof.checking.measured_events import (
    GuardCostEvent,
    MemoryEvent,
    SweepEvent,
    TimingEvent,
)
from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import Piece, assembled, setting
from torchproof.checking.rules.rule import (
    AnyGroup,
    E,
    EventGroup,
    Facts,
    G,
    Rule,
    function_of,
    plural,
    shorten,
)
from torchproof.checking.static.compiled import WITH_GRAPHS
from torchproof.records import (
    Setting,
    Severity,
    original_name,
    place_of,
    source_line,
)

# Two correct measurements of one program can differ by this much.
_NOTICEABLE = 0.05
_MOST_GAIN = 1.10
_MANY_GRAPHS = 4
_EXPLAINS = 0.25  # the share of the lost time that counts as an explanation


TimingGroup = EventGroup[TimingEvent]
CostGroup = EventGroup[TimingEvent | GuardCostEvent]
MemoryGroup = EventGroup[MemoryEvent]
SweepGroup = EventGroup[SweepEvent]


class Speed(Rule[G]):
    """Base class of the rules for measured times and memory."""

    kind = "slowdown"
    parts: ClassVar[tuple[str, ...]] = ("baseline",)
    reference = torch_pages.PROFILING

    def words(self, group: G) -> dict[str, object]:
        return {"named": named(group)}


def group_of(event: E, facts: Facts) -> EventGroup[E]:
    """A group of one event, at the function that the event names."""
    return EventGroup((event,), place_of(function_of(event)), facts)


def duration(seconds: float) -> str:
    """A time with three digits, in s, ms or us."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def named(group: AnyGroup) -> str:
    function = group.first.function
    if group.frame is None and function is not None:
        return original_name(function.function)
    return group.function


def is_slower(event: TimingEvent) -> bool:
    return event.high < 1 and event.ratio <= 1 - _NOTICEABLE


class Reason(NamedTuple):
    """Why compiled code is slow, and how to fix it."""

    cause: str
    fix: str


def _reason(timing: TimingEvent) -> Reason:
    """The first explanation that the measured numbers support."""
    if timing.recompiles_in_steps:
        return _recompiling(timing)
    if timing.graphs == 0:
        return _NOTHING_RUNS
    many = (timing.graphs or 0) >= _MANY_GRAPHS
    if timing.gaps and (many or timing.gaps_us >= _EXPLAINS * timing.loss_us):
        return _breaking(timing)
    overhead = timing.overhead_us
    much_us = min(0.3 * timing.loss_us, timing.eager_ms * 1e3)
    if overhead is not None and overhead >= much_us:
        return _small_work(timing, overhead)
    if many:
        return _many_graphs(timing)
    if timing.gaps:
        return _breaking(timing)
    return _NOT_MEASURED if overhead is None else _slow_graph(overhead)


def _recompiling(timing: TimingEvent) -> Reason:
    times = plural(timing.recompiles_in_steps or 0, "time")
    return Reason(
        f"it was compiled again {times} while its steps were timed: it does not settle",
        "first fix the cause of the recompiles (see the RC findings), then measure"
        " again",
    )


def _breaking(timing: TimingEvent) -> Reason:
    worst = max(timing.gaps, key=lambda gap: gap.us)
    total = duration(timing.gaps_us * 1e-6)
    code = shorten(source_line(worst.file, worst.line).strip(), 50)
    what = f" (`{code}`)" if code else ""
    cause = f"{total} of each call are spent in graph breaks, between one graph and"
    cause += " the next"
    if timing.gaps_us < _EXPLAINS * timing.loss_us:
        lost = duration(timing.loss_us * 1e-6)
        graphs = plural(timing.graphs, "graph") if timing.graphs else "graphs"
        cause += f"; the rest of the {lost} goes to the {graphs} they cut it into: to"
        cause += " what they run, their guards and their dispatch"
    return Reason(
        cause,
        f"remove the graph breaks, first the one at line {worst.line}{what}, which"
        f" takes {duration(worst.us * 1e-6)} per call; until then do not compile"
        " this",
    )


def _small_work(timing: TimingEvent, overhead_us: float) -> Reason:
    work = duration(timing.eager_ms * 1e-3)
    return Reason(
        f"the work of one call is too small: eager does it in {work}, and a compiled"
        f" call spends {duration(overhead_us * 1e-6)} on guards, unpacking of arguments"
        " and dispatch besides",
        "do not compile this function alone: compile a larger region that contains it,"
        " or batch the work of several calls into one",
    )


def _many_graphs(timing: TimingEvent) -> Reason:
    return Reason(
        f"each call runs {timing.graphs} small graphs, and each pays for its guards"
        " and its dispatch",
        "compile a larger region, so that one graph does all the work, or do not"
        " compile this",
    )


def _slow_graph(overhead_us: float) -> Reason:
    outside = duration(overhead_us * 1e-6)
    return Reason(
        f"guards, unpacking of arguments and dispatch take only {outside} of each call:"
        " the graph itself is slower than torch's own kernels here",
        _MEASURE_LAYERS,
    )


_NOTHING_RUNS = Reason(
    "no compiled code runs: all frames are skipped, and looking for compiled code is"
    " all that was added",
    "fix the cause of the skipped frames (see the GB findings), or do not compile this",
)
_MEASURE_LAYERS = (
    "do not compile this, or measure `torchproof bench --modes` and `--backends"
    " aot_eager,inductor` to see which layer loses the time"
)
_NOT_MEASURED = Reason(
    "breaks and recompilations do not explain it; what a call spends on guards and"
    " dispatch was not measured",
    _MEASURE_LAYERS,
)


class SlowerThanEager(Speed[TimingGroup]):
    """Compiled steps take longer than eager steps.

    ## Why
    Compiled code pays for guards and dispatch in every call, and for each graph break.
    If a call does little work, or breaks often, this costs more than fusion saves.

    ## Bad
        add = torch.compile(lambda x: x + 1)       # called on four numbers

    ## Good
        step = torch.compile(whole_step)           # enough work in one call

    ## Fix safety
    Without compilation you get eager's values, which the check compared.
    """

    code = "SP501"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[TimingGroup]:
        for event in facts.of(TimingEvent):
            if is_slower(event):
                yield group_of(event, facts)

    def message(self, group: TimingGroup) -> str:
        timing = group.first
        eager, compiled = (
            duration(ms * 1e-3) for ms in (timing.eager_ms, timing.compiled_ms)
        )
        return (
            f"{named(group)} takes {compiled} per call compiled and {eager} in eager:"
            f" {1 / timing.ratio:.2f}x slower"
        )

    def cause(self, group: TimingGroup) -> str:
        return _reason(group.first).cause

    def advice(self, group: TimingGroup) -> str:
        return _reason(group.first).fix

    def severity(self, group: TimingGroup) -> Severity:
        timing = group.first
        if timing.ratio <= 0.5 and timing.compiled_ms >= 1.0:
            return "high"
        return "low" if timing.ratio > 0.9 else "medium"

    def cost_us(self, group: TimingGroup) -> float | None:
        return group.first.loss_us

    def evidence(self, group: TimingGroup) -> Iterable[str]:
        return _timings(group.first)


def _timings(timing: TimingEvent) -> Iterator[str]:
    yield (
        f"eager/compiled {timing.ratio:.3f}, interval {timing.low:.3f} to"
        f" {timing.high:.3f}"
    )
    if timing.overhead_us is not None:
        yield f"a call spends {timing.overhead_us:.1f} us outside its graph (host)"
    for gap in timing.gaps:
        where = f"{gap.file}:{gap.line}"
        yield f"break at {where}: {gap.us:.1f} us per call (host)"


class NoGain(Speed[TimingGroup]):
    """Compiled steps are no faster than eager steps.

    ## Why
    Compilation takes time and saves none, so it never pays off.

    ## Bad
        model = torch.compile(model)     # one large matmul, all in one kernel

    ## Good
        model                            # or a mode that measurements show to be faster

    ## Fix safety
    Without compilation you get eager's values, which the check compared.
    """

    code = "SP502"
    run_severity = "low"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[TimingGroup]:
        for event in facts.of(TimingEvent):
            no_gain = event.high < _MOST_GAIN and event.ratio < 1 + _NOTICEABLE
            if no_gain and not is_slower(event) and event.first_call_s is not None:
                yield group_of(event, facts)

    def message(self, group: TimingGroup) -> str:
        timing = group.first
        return (
            f"compiling {named(group)} never pays off: a call takes"
            f" {duration(timing.compiled_ms * 1e-3)} compiled and"
            f" {duration(timing.eager_ms * 1e-3)} in eager, the first call"
            f" {duration(timing.first_call_s or 0.0)}"
        )

    def cause(self, group: TimingGroup) -> str:
        if group.first.gaps:
            total = duration(group.first.gaps_us * 1e-6)
            return f"graph breaks take {total} of each call and use up what is gained"
        return (
            "what is computed leaves nothing to gain: fusing saves no more than a"
            " compiled call costs"
        )

    def advice(self, group: TimingGroup) -> str:
        if group.first.gaps:
            return "remove the graph breaks and measure again, or do not compile this"
        return (
            "do not compile this, or compile a larger region; `torchproof bench"
            " --modes` shows whether another mode is faster"
        )

    def evidence(self, group: TimingGroup) -> Iterable[str]:
        return _timings(group.first)


_GUARD_SHARE = 0.10
_GUARDS_US = 25.0
_OVERHEAD_SHARE = 0.20
_OVERHEAD_US = 100.0
_MEMORY_SHARE = 0.20
_MEMORY_BYTES = 64 * 2**20


class _Cost(NamedTuple):
    """A cost of each call, in microseconds and as a share of it."""

    us: float
    share: float
    what: str


def _guard_cost(event: TimingEvent | GuardCostEvent) -> _Cost | None:
    """What a call spends on guards and dispatch; None if that is little."""
    if isinstance(event, GuardCostEvent):
        share, us = event.share, event.lookup_us
        if share <= _GUARD_SHARE or us < _GUARDS_US:
            return None
        return _Cost(us, share, "guards")
    if event.overhead_us is None or is_slower(event):
        return None
    share, us = event.overhead_us / (event.compiled_ms * 1e3), event.overhead_us
    if share <= _OVERHEAD_SHARE or us < _OVERHEAD_US:
        return None
    return _Cost(us, share, "guards, unpacking of arguments and dispatch")


class GuardCost(Speed[CostGroup]):
    """Guards and dispatch take a large share of each compiled step.

    ## Why
    Before compiled code runs, torch checks every guard: one for each module, attribute
    and tensor that Dynamo read while tracing.

    ## Bad
        decode(token)                # 200 us of work through 150 small modules

    ## Good
        decode_many(tokens)          # several steps in one call

    ## Fix safety
    More work per call is safe. Skipping guards is not: nobody checks those conditions
    any more, and a change that a guard would have caught gives wrong values without an
    error.
    """

    code = "SP541"
    parts = ("guards",)
    reference = torch_pages.GUARDS
    advice_text = (
        "compile a larger region, or batch calls. If modules and globals never change"
        " after the first call, skip their guards: torch.compile(...,"
        " options={{'guard_filter_fn':"
        " torch.compiler.skip_guard_on_all_nn_modules_unsafe}}); `torchproof bench"
        " --guards` measures the gain and lists what is no longer checked"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[CostGroup]:
        measured = facts.of(GuardCostEvent)
        events: Iterable[TimingEvent | GuardCostEvent] = measured or facts.of(
            TimingEvent
        )
        for event in events:
            if _guard_cost(event) is not None:
                yield group_of(event, facts)

    def message(self, group: CostGroup) -> str:
        us, share, what = self._cost(group)
        return (
            f"{what} take {duration(us * 1e-6)} of each call of {named(group)}:"
            f" {share:.0%} of the step"
        )

    def _cost(self, group: CostGroup) -> _Cost:
        cost = _guard_cost(group.first)
        assert cost is not None  # the groups have no others
        return cost

    def cause(self, group: CostGroup) -> str:
        event = group.first
        guards = event.guards if isinstance(event, GuardCostEvent) else None
        count = f" ({guards} of them)" if guards else ""
        return (
            f"every call checks all conditions it was compiled under{count} before it"
            " runs, and the work behind them is short"
        )

    def severity(self, group: CostGroup) -> Severity:
        measured = isinstance(group.first, GuardCostEvent)
        return "medium" if measured and self._cost(group).share >= 0.3 else "low"

    def cost_us(self, group: CostGroup) -> float:
        return self._cost(group).us


class MoreMemory(Speed[MemoryGroup]):
    """The compiled target needs much more device memory than eager.

    ## Why
    CUDA graphs keep a memory pool for each recorded size, and fused kernels may keep
    tensors that eager frees. The program can then run out of memory in production.

    ## Bad
        torch.compile(model, mode="reduce-overhead")    # and ten input sizes

    ## Good
        torch.compile(model)                            # or a few padded sizes

    ## Fix safety
    Another mode and padding give the same values up to rounding.
    """

    code = "SP521"
    kind = "memory"
    reference = torch_pages.MEMORY

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[MemoryGroup]:
        for event in facts.of(MemoryEvent):
            more = event.compiled_bytes - event.eager_bytes
            if more > max(_MEMORY_SHARE * event.eager_bytes, _MEMORY_BYTES):
                yield group_of(event, facts)

    def message(self, group: MemoryGroup) -> str:
        event = group.first
        compiled, eager = event.compiled_bytes, event.eager_bytes
        return (
            f"{named(group)} needs {_mebibytes(compiled)} compiled and"
            f" {_mebibytes(eager)} in eager: {_mebibytes(compiled - eager)} more"
        )

    def cause(self, group: MemoryGroup) -> str:
        if "reduce-overhead" in group.first.strategy:
            return "CUDA graphs keep their own pool of memory for each recorded size"
        return "compiled code keeps memory at its peak that eager has freed by then"

    def advice(self, group: MemoryGroup) -> str:
        mode = group.facts.compile_arguments.get("mode", "")
        graphs = mode in WITH_GRAPHS or "overhead" in group.first.strategy
        return assembled(
            Piece("compile without CUDA graphs (mode='default')", graphs),
            Piece("pad inputs to a few sizes", graphs),
            Piece(
                "compile only the repeated blocks; measure it with `torchproof bench`"
            ),
        )

    def severity(self, group: MemoryGroup) -> Severity:
        twice = group.first.compiled_bytes >= 2 * group.first.eager_bytes
        return "high" if twice else "medium"


class ShapeSweep(Speed[SweepGroup]):
    """Other batch sizes or sequence lengths recompile the target.

    ## Why
    If a size is a constant of the graph, every other size waits for the compiler. Torch
    usually detects a size that varies and makes it dynamic. If it does not, every size
    costs a compilation, and after 8 of them torch stops compiling the function.

    ## Bad
        torch.compile(model, dynamic=False)      # and batches of 4, 8, 6, 10

    ## Good
        torch._dynamo.maybe_mark_dynamic(x, 0)   # before the first call

    ## Fix safety
    The values are the same up to rounding. A kernel for any size can be slower than one
    for a fixed size.
    """

    code = "SP531"
    parts = ("batch", "sequence")
    reference = torch_pages.DYNAMIC_SHAPES
    kind = "recompile"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[SweepGroup]:
        for event in facts.of(SweepEvent):
            if event.again:
                yield group_of(event, facts)

    def message(self, group: SweepGroup) -> str:
        event = group.first
        again = event.again
        values = ", ".join(map(str, again))
        total = sum(again.values())
        return (
            f"{named(group)} was recompiled {plural(total, 'time')} for"
            f" {len(event.recompiles)} values of {event.dimension}: at {values}"
        )

    def cause(self, group: SweepGroup) -> str:
        dimension = group.first.dimension
        storm = group.first.storm
        if len(storm) > 1:
            return f"the {dimension} size is compiled in, so another one does not fit"
        if storm:
            return (
                f"the first other {dimension} size shows that it varies; torch then"
                " compiles for any size"
            )
        return f"{dimension} sizes 0 and 1 get code of their own, once"

    def advice(self, group: SweepGroup) -> str:
        dimension = group.first.dimension
        axis = {"batch": "0", "sequence": "1"}.get(dimension, "d")
        if len(group.first.storm) <= 1:
            return f"warm up with each {dimension} size that you serve"
        return assembled(
            Piece(
                f"mark the {dimension} dimension of each input before the first call:"
                f" torch._dynamo.maybe_mark_dynamic(x, {axis})"
            ),
            setting(group, Setting("compile.dynamic", True)),
            Piece("pad to a few sizes"),
        )

    def severity(self, group: SweepGroup) -> Severity:
        storm = len(group.first.storm)
        if storm <= 1:
            return "low"
        values = set(group.first.recompiles)
        return "high" if storm >= 3 and storm + 1 >= len(values - {0, 1}) else "medium"

    def evidence(self, group: SweepGroup) -> Iterable[str]:
        for value, count in group.first.recompiles.items():
            yield f"{value}: {plural(count, 'recompilation')}"


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"
