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
from torchproof.checking.rules.rule import (
    AnyGroup,
    E,
    EventGroup,
    Facts,
    G,
    Rule,
    function_of,
    plural,
)
from torchproof.checking.static.compiled import WITH_GRAPHS
from torchproof.records import Setting, Severity, cells, original_name, place_of, shown

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


class Timing(Speed[TimingGroup]):
    """Base class of the rules for the times of calls."""

    def words(self, group: TimingGroup) -> dict[str, object]:
        timing = group.first
        return super().words(group) | {
            "slower": 1 / timing.ratio,
            "compiled": duration(timing.compiled_ms * 1e-3),
            "eager": duration(timing.eager_ms * 1e-3),
            "first": duration(timing.first_call_s or 0.0),
            "graphs": timing.graphs,
            "gaps": duration(timing.gaps_us * 1e-6),
            "overhead": duration((timing.overhead_us or 0.0) * 1e-6),
            "recompiles": plural(timing.recompiles_in_steps or 0, "time"),
        }

    def evidence(self, group: TimingGroup) -> Iterable[str]:
        timing = group.first
        yield (
            f"eager/compiled {timing.ratio:.3f}, interval {timing.low:.3f} to"
            f" {timing.high:.3f}"
        )
        if timing.overhead_us is not None:
            yield f"a call spends {timing.overhead_us:.1f} us outside its graph (host)"
        for gap in timing.gaps:
            where = f"{gap.file}:{gap.line}"
            yield f"break at {where}: {gap.us:.1f} us per call (host)"


class Reason(NamedTuple):
    """Why compiled code is slow, and what to do about it."""

    cause: str
    advice: str


_RECOMPILES = Reason(
    "it was compiled again {recompiles} while its steps were timed: it does not settle",
    "fix the cause of the recompiles first (see the RC findings)",
)
_NOTHING_RUNS = Reason(
    "no compiled code runs: all frames are skipped, and looking for compiled code is"
    " all that was added",
    "fix the cause of the skipped frames first (see the GB findings)",
)
_BREAKS = Reason(
    "{gaps} of each call are spent in graph breaks, between one graph and the next",
    "remove the graph break at {worst} first: it takes {gap} per call",
)
_BREAKS_AND_GRAPHS = Reason(
    "graph breaks take {gaps} of each call; most of the loss goes to the guards and the"
    " dispatch of the graphs they cut it into",
    _BREAKS.advice,
)
_SMALL_WORK = Reason(
    "eager needs {eager} for one call, and a compiled call spends {overhead} on guards,"
    " arguments and dispatch besides",
    "compile a larger region, as what calls {named}, instead of {named} alone",
)
_MANY_SMALL = Reason(
    "each call runs {graphs} small graphs, and each pays for its guards and dispatch",
    "compile a larger region around {named}, so that one graph does all the work",
)
_SLOW_GRAPH = Reason(
    "only {overhead} of each call is spent outside: the graph itself is slower than"
    " torch's own kernels",
    "do not compile {named}, unless `torchproof bench --modes` shows a faster mode",
)
_NOT_MEASURED = Reason(
    "breaks and recompiles do not explain it; what a call spends on guards and dispatch"
    " was not measured",
    _SLOW_GRAPH.advice,
)


def _reason(timing: TimingEvent) -> Reason:
    """The first explanation that the measured numbers support."""
    if timing.recompiles_in_steps:
        return _RECOMPILES
    if timing.graphs == 0:
        return _NOTHING_RUNS
    many = (timing.graphs or 0) >= _MANY_GRAPHS
    breaks_explain = timing.gaps_us >= _EXPLAINS * timing.loss_us
    breaking = _BREAKS if breaks_explain else _BREAKS_AND_GRAPHS
    if timing.gaps and (many or breaks_explain):
        return breaking
    overhead = timing.overhead_us
    much_us = min(0.3 * timing.loss_us, timing.eager_ms * 1e3)
    if overhead is not None and overhead >= much_us:
        return _SMALL_WORK
    if many:
        return _MANY_SMALL
    if timing.gaps:
        return breaking
    return _NOT_MEASURED if overhead is None else _SLOW_GRAPH


class SlowerThanEager(Timing):
    """Compiled steps take longer than eager steps.

    ## Why
    Compiled code pays for guards and dispatch in every call, and for each graph break.
    If a call does little work, or breaks often, this costs more than fusion saves.

    ## Bad
        add = torch.compile(lambda x: x + 1)       # called on four numbers

    ## Good
        step = torch.compile(whole_step)           # enough work in one call

    ## Fix safety
    Without compilation you get eager's values, which the check compared. The work of
    several calls may also be batched into one. `torchproof bench --modes` and
    `--backends aot_eager,inductor` show which layer loses the time.
    """

    code = "SP501"
    message_text = (
        "{named} takes {compiled} per call compiled and {eager} in eager:"
        " {slower:.2f}x slower"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[TimingGroup]:
        for event in facts.of(TimingEvent):
            if is_slower(event):
                yield group_of(event, facts)

    def words(self, group: TimingGroup) -> dict[str, object]:
        words = super().words(group)
        if group.first.gaps:
            gap = max(group.first.gaps, key=lambda each: each.us)
            words["worst"] = cells.place(shown(gap.file), gap.line)
            words["gap"] = duration(gap.us * 1e-6)
        return words

    def cause(self, group: TimingGroup) -> str:
        return self.say(_reason(group.first).cause, group)

    def advice(self, group: TimingGroup) -> str:
        return self.say(_reason(group.first).advice, group)

    def severity(self, group: TimingGroup) -> Severity:
        timing = group.first
        if timing.ratio <= 0.5 and timing.compiled_ms >= 1.0:
            return "high"
        return "low" if timing.ratio > 0.9 else "medium"

    def cost_us(self, group: TimingGroup) -> float | None:
        return group.first.loss_us


class NoGain(Timing):
    """Compiled steps are no faster than eager steps.

    ## Why
    Compilation takes time and saves none, so it never pays off.

    ## Bad
        model = torch.compile(model)     # one large matmul, all in one kernel

    ## Good
        model                            # or a mode that measurements show to be faster

    ## Fix safety
    Without compilation you get eager's values, which the check compared. A larger
    region may gain something.
    """

    code = "SP502"
    run_severity = "low"
    message_text = (
        "compiling {named} never pays off: {compiled} per call, eager {eager}, the"
        " first call {first}"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[TimingGroup]:
        for event in facts.of(TimingEvent):
            no_gain = event.high < _MOST_GAIN and event.ratio < 1 + _NOTICEABLE
            if no_gain and not is_slower(event) and event.first_call_s is not None:
                yield group_of(event, facts)

    def cause(self, group: TimingGroup) -> str:
        if group.first.gaps:
            text = "graph breaks take {gaps} of each call and use up what is gained"
            return self.say(text, group)
        return "fusing saves no more here than a compiled call costs"

    def advice(self, group: TimingGroup) -> str:
        if group.first.gaps:
            return "remove the graph breaks (see the GB findings), and measure again"
        return self.say(_SLOW_GRAPH.advice, group)


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
    return _Cost(us, share, "guards and dispatch")


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
    More work per call is safe. Skipping guards (options={"guard_filter_fn":
    torch.compiler.skip_guard_on_all_nn_modules_unsafe}) is not: nobody checks those
    conditions any more, and a change that a guard would have caught gives wrong values
    without an error. `torchproof bench --guards` measures the gain and lists what is no
    longer checked.
    """

    code = "SP541"
    parts = ("guards",)
    reference = torch_pages.GUARDS
    message_text = "{what} take {time} of each call of {named}: {share:.0%} of the step"
    cause_text = (
        "every call checks all conditions it was compiled under{count} before it runs,"
        " and the work behind them is short"
    )
    advice_text = "do more work in one call of {named}, or compile what calls it"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[CostGroup]:
        events: Iterable[TimingEvent | GuardCostEvent]
        events = facts.of(GuardCostEvent) or facts.of(TimingEvent)
        for event in events:
            if _guard_cost(event) is not None:
                yield group_of(event, facts)

    def _cost(self, group: CostGroup) -> _Cost:
        cost = _guard_cost(group.first)
        assert cost is not None  # the groups have no others
        return cost

    def words(self, group: CostGroup) -> dict[str, object]:
        us, share, what = self._cost(group)
        event = group.first
        guards = event.guards if isinstance(event, GuardCostEvent) else None
        return super().words(group) | {
            "what": what,
            "time": duration(us * 1e-6),
            "share": share,
            "count": f" ({guards} of them)" if guards else "",
        }

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
    Another mode, padding to a few sizes, and compiling only the repeated blocks give
    the same values up to rounding.
    """

    code = "SP521"
    kind = "memory"
    reference = torch_pages.MEMORY
    message_text = "{named} needs {compiled} compiled and {eager} in eager: {more} more"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[MemoryGroup]:
        for event in facts.of(MemoryEvent):
            more = event.compiled_bytes - event.eager_bytes
            if more > max(_MEMORY_SHARE * event.eager_bytes, _MEMORY_BYTES):
                yield group_of(event, facts)

    def words(self, group: MemoryGroup) -> dict[str, object]:
        compiled, eager = group.first.compiled_bytes, group.first.eager_bytes
        sizes = {"compiled": compiled, "eager": eager, "more": compiled - eager}
        shown = {name: f"{size / 2**20:.0f} MiB" for name, size in sizes.items()}
        return super().words(group) | shown

    def _has_graphs(self, group: MemoryGroup) -> bool:
        mode = group.facts.compile_arguments.get("mode", "")
        return mode in WITH_GRAPHS or "overhead" in group.first.strategy

    def cause(self, group: MemoryGroup) -> str:
        if self._has_graphs(group):
            return "CUDA graphs keep their own pool of memory for each recorded size"
        return "compiled code keeps memory at its peak that eager has freed by then"

    def advice(self, group: MemoryGroup) -> str:
        if self._has_graphs(group):
            return "compile without CUDA graphs: mode='default'"
        return "compile only the repeated blocks, and measure with `torchproof bench`"

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
    for a fixed size; padding to a few sizes keeps fixed ones.
    """

    code = "SP531"
    parts = ("batch", "sequence")
    reference = torch_pages.DYNAMIC_SHAPES
    kind = "recompile"
    message_text = (
        "{named} was recompiled {times} for {sizes} values of {at.first.dimension}: at"
        " {values}"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[SweepGroup]:
        for event in facts.of(SweepEvent):
            if event.again:
                yield group_of(event, facts)

    def words(self, group: SweepGroup) -> dict[str, object]:
        again = group.first.again
        return super().words(group) | {
            "times": plural(sum(again.values()), "time"),
            "sizes": len(group.first.recompiles),
            "values": ", ".join(map(str, again)),
            "axis": {"batch": 0, "sequence": 1}.get(group.first.dimension, "d"),
        }

    def cause(self, group: SweepGroup) -> str:
        dimension, storm = group.first.dimension, group.first.storm
        if len(storm) > 1:
            return f"the {dimension} size is compiled in, so another one does not fit"
        if storm:
            return (
                f"the first other {dimension} size shows that it varies; torch then"
                " compiles for any size"
            )
        return f"{dimension} sizes 0 and 1 get code of their own, once"

    def setting(self, group: SweepGroup) -> Setting | None:
        """Sizes may vary, where the program forbids it."""
        fixed = group.facts.compile_arguments.get("dynamic") == "False"
        many = len(group.first.storm) > 1
        return Setting("compile.dynamic", True) if fixed and many else None

    def advice(self, group: SweepGroup) -> str:
        if len(group.first.storm) <= 1:
            return f"warm up with each {group.first.dimension} size that you serve"
        return self.say(
            "mark the {at.first.dimension} size of each input before the first call:"
            " torch._dynamo.maybe_mark_dynamic(x, {axis})",
            group,
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
