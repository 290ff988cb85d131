"""SP50x: compiled steps that are slower than eager, or no faster.

The events carry the measured numbers; the rules measure nothing. A ratio is eager time
over compiled time, so 0.5 is twice as slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import Piece, assembled, setting
from torchproof.checking.rules.rule import EventGroup, Facts, Rule, plural, shorten
from torchproof.checking.static.compiled import WITH_GRAPHS
from torchproof.records import (
    Event,
    Finding,
    Setting,
    Severity,
    definition,
    original_name,
    place_of,
    source_line,
)

# Two correct measurements of one program can differ by this much.
_NOTICEABLE = 0.05
_MOST_GAIN = 1.10
_MANY_GRAPHS = 4
_EXPLAINS = 0.25  # the share of the lost time that counts as an explanation


class Speed(Rule):
    """Base class of the rules for measured times and memory."""

    kind = "slowdown"
    parts: ClassVar[tuple[str, ...]] = ("baseline",)
    reference = torch_pages.PROFILING

    def words(self, group: EventGroup) -> dict[str, object]:
        return {"named": named(group)}

    def cost_us(self, group: EventGroup) -> float | None:
        """The cost per call, if it was measured."""
        return None

    def finding(self, group: EventGroup) -> Finding:
        return replace(super().finding(group), cost_us=self.cost_us(group))


def group_of(event: Event, facts: Facts, **extra: Any) -> EventGroup:
    """A group of one event, at the function that the event names."""
    frames = (definition(event.function),) if event.function else ()
    return EventGroup((event,), place_of(frames), facts, extra=extra)


def duration(seconds: float) -> str:
    """A time with three digits, in s, ms or us."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def named(group: EventGroup) -> str:
    function = group.first.function
    if group.frame is None and function is not None:
        return original_name(function.function)
    return group.function


def is_comparable(data: Any) -> bool:
    """Whether both times were measured well enough to compare."""
    return data.get("low") is not None


def is_slower(data: Any) -> bool:
    certain = is_comparable(data) and data["high"] < 1
    return bool(certain and data["ratio"] <= 1 - _NOTICEABLE)


class Reason(NamedTuple):
    """Why compiled code is slow, and how to fix it."""

    cause: str
    fix: str


def _reason(data: Any) -> Reason:
    """The first explanation that the measured numbers support."""
    loss_us = (data["compiled_ms"] - data["eager_ms"]) * 1e3
    gaps = data.get("gaps") or []
    if data.get("recompiles_in_steps"):
        return _recompiling(data)
    if data.get("graphs") == 0:
        return _NOTHING_RUNS
    many = (data.get("graphs") or 0) >= _MANY_GRAPHS
    if gaps and (many or sum(gap["us"] for gap in gaps) >= _EXPLAINS * loss_us):
        return _breaking(data, gaps)
    overhead = data.get("overhead_us")
    if overhead is not None and overhead >= min(0.3 * loss_us, data["eager_ms"] * 1e3):
        return _small_work(data, overhead)
    if many:
        return _many_graphs(data)
    if gaps:
        return _breaking(data, gaps)
    return _NOT_MEASURED if overhead is None else _slow_graph(overhead)


def _recompiling(data: Any) -> Reason:
    times = plural(data["recompiles_in_steps"], "time")
    return Reason(
        f"it was compiled again {times} while its steps were timed: it does not settle",
        "first fix the cause of the recompiles (see the RC findings), then measure"
        " again",
    )


def _breaking(data: Any, gaps: list[Any]) -> Reason:
    worst = max(gaps, key=lambda gap: gap["us"])
    total = duration(sum(gap["us"] for gap in gaps) * 1e-6)
    code = shorten(source_line(worst["file"], worst["line"]).strip(), 50)
    what = f" (`{code}`)" if code else ""
    cause = f"{total} of each call are spent in graph breaks, between one graph and"
    cause += " the next"
    loss_us = (data["compiled_ms"] - data["eager_ms"]) * 1e3
    if sum(gap["us"] for gap in gaps) < _EXPLAINS * loss_us:
        lost = duration(loss_us * 1e-6)
        graphs = plural(data["graphs"], "graph") if data.get("graphs") else "graphs"
        cause += f"; the rest of the {lost} goes to the {graphs} they cut it into: to"
        cause += " what they run, their guards and their dispatch"
    return Reason(
        cause,
        f"remove the graph breaks, first the one at line {worst['line']}{what}, which"
        f" takes {duration(worst['us'] * 1e-6)} per call; until then do not compile"
        " this",
    )


def _small_work(data: Any, overhead_us: float) -> Reason:
    work = duration(data["eager_ms"] * 1e-3)
    return Reason(
        f"the work of one call is too small: eager does it in {work}, and a compiled"
        f" call spends {duration(overhead_us * 1e-6)} on guards, unpacking of arguments"
        " and dispatch besides",
        "do not compile this function alone: compile a larger region that contains it,"
        " or batch the work of several calls into one",
    )


def _many_graphs(data: Any) -> Reason:
    return Reason(
        f"each call runs {data['graphs']} small graphs, and each pays for its guards"
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


class SlowerThanEager(Speed):
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
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        for event in facts.events("timing"):
            if is_slower(event.data):
                yield group_of(event, facts)

    def message(self, group: EventGroup) -> str:
        data = group.data
        eager, compiled = (
            duration(data[key] * 1e-3) for key in ("eager_ms", "compiled_ms")
        )
        return (
            f"{named(group)} takes {compiled} per call compiled and {eager} in eager:"
            f" {1 / data['ratio']:.2f}x slower"
        )

    def cause(self, group: EventGroup) -> str:
        return _reason(group.data).cause

    def fix(self, group: EventGroup) -> str:
        return _reason(group.data).fix

    def severity(self, group: EventGroup) -> Severity:
        data = group.data
        if data["ratio"] <= 0.5 and data["compiled_ms"] >= 1.0:
            return "high"
        return "low" if data["ratio"] > 0.9 else "medium"

    def cost_us(self, group: EventGroup) -> float | None:
        return float(group.data["compiled_ms"] - group.data["eager_ms"]) * 1e3

    def evidence(self, group: EventGroup) -> Iterable[str]:
        return _timings(group.data)


def _timings(data: Any) -> Iterator[str]:
    yield (
        f"eager/compiled {data['ratio']:.3f}, interval {data['low']:.3f} to"
        f" {data['high']:.3f}"
    )
    if data.get("overhead_us") is not None:
        yield f"a call spends {data['overhead_us']:.1f} us outside its graph (host)"
    for gap in data.get("gaps") or ():
        where = f"{gap['file']}:{gap['line']}"
        yield f"break at {where}: {gap['us']:.1f} us per call (host)"


class NoGain(Speed):
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
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        for event in facts.events("timing"):
            data = event.data
            if (
                is_comparable(data)
                and not is_slower(data)
                and data["high"] < _MOST_GAIN
                and data["ratio"] < 1 + _NOTICEABLE
                and data.get("first_call_s") is not None
            ):
                yield group_of(event, facts)

    def message(self, group: EventGroup) -> str:
        data = group.data
        return (
            f"compiling {named(group)} never pays off: a call takes"
            f" {duration(data['compiled_ms'] * 1e-3)} compiled and"
            f" {duration(data['eager_ms'] * 1e-3)} in eager, the first call"
            f" {duration(data['first_call_s'])}"
        )

    def cause(self, group: EventGroup) -> str:
        data = group.data
        gaps = data.get("gaps") or []
        if gaps:
            total = duration(sum(gap["us"] for gap in gaps) * 1e-6)
            return f"graph breaks take {total} of each call and use up what is gained"
        return (
            "what is computed leaves nothing to gain: fusing saves no more than a"
            " compiled call costs"
        )

    def fix(self, group: EventGroup) -> str:
        if group.data.get("gaps"):
            return "remove the graph breaks and measure again, or do not compile this"
        return (
            "do not compile this, or compile a larger region; `torchproof bench"
            " --modes` shows whether another mode is faster"
        )

    def evidence(self, group: EventGroup) -> Iterable[str]:
        return _timings(group.data)


_GUARD_SHARE = 0.10
_GUARDS_US = 25.0
_OVERHEAD_SHARE = 0.20
_OVERHEAD_US = 100.0
_MEMORY_SHARE = 0.20
_MEMORY_BYTES = 64 * 2**20


class GuardCost(Speed):
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
    fix_text = (
        "compile a larger region, or batch calls. If modules and globals never change"
        " after the first call, skip their guards: torch.compile(...,"
        " options={{'guard_filter_fn':"
        " torch.compiler.skip_guard_on_all_nn_modules_unsafe}}); `torchproof bench"
        " --guards` measures the gain and lists what is no longer checked"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        measured = facts.events("guard_cost")
        for event in measured:
            share, cost = event.data["share"], event.data["lookup_us"]
            if share is not None and share > _GUARD_SHARE and cost >= _GUARDS_US:
                yield group_of(event, facts, cost_us=cost, share=share, what="guards")
        for event in () if measured else facts.events("timing"):
            cost = event.data.get("overhead_us")
            data = event.data
            if cost is None or is_slower(data) or not is_comparable(data):
                continue
            share = cost / (data["compiled_ms"] * 1e3)
            if share > _OVERHEAD_SHARE and cost >= _OVERHEAD_US:
                what = "guards, unpacking of arguments and dispatch"
                yield group_of(event, facts, cost_us=cost, share=share, what=what)

    def message(self, group: EventGroup) -> str:
        cost = duration(self.cost_us(group) * 1e-6)
        return (
            f"{group.extra['what']} take {cost} of each call of {named(group)}:"
            f" {group.extra['share']:.0%} of the step"
        )

    def cause(self, group: EventGroup) -> str:
        guards = group.data.get("guards")
        count = f" ({guards} of them)" if guards else ""
        return (
            f"every call checks all conditions it was compiled under{count} before it"
            " runs, and the work behind them is short"
        )

    def severity(self, group: EventGroup) -> Severity:
        measured = group.first.kind == "guard_cost"
        return "medium" if measured and group.extra["share"] >= 0.3 else "low"

    def cost_us(self, group: EventGroup) -> float:
        return float(group.extra["cost_us"])


class MoreMemory(Speed):
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
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        for event in facts.events("memory"):
            eager, compiled = event.data["eager_bytes"], event.data["compiled_bytes"]
            if eager is None or compiled is None:
                continue
            more = compiled - eager
            if more > _MEMORY_SHARE * eager and more > _MEMORY_BYTES:
                yield group_of(event, facts, more=more)

    def message(self, group: EventGroup) -> str:
        data = group.data
        more = group.extra["more"]
        return (
            f"{named(group)} needs {_mebibytes(data['compiled_bytes'])} compiled and"
            f" {_mebibytes(data['eager_bytes'])} in eager: {_mebibytes(more)} more"
        )

    def cause(self, group: EventGroup) -> str:
        if "reduce-overhead" in str(group.data.get("strategy")):
            return "CUDA graphs keep their own pool of memory for each recorded size"
        return "compiled code keeps memory at its peak that eager has freed by then"

    def fix(self, group: EventGroup) -> str:
        mode = group.facts.compile_arguments.get("mode", "")
        graphs = mode in WITH_GRAPHS or "overhead" in str(group.data.get("strategy"))
        return assembled(
            Piece("compile without CUDA graphs (mode='default')", graphs),
            Piece("pad inputs to a few sizes", graphs),
            Piece(
                "compile only the repeated blocks; measure it with `torchproof bench`"
            ),
        )

    def severity(self, group: EventGroup) -> Severity:
        twice = group.data["compiled_bytes"] >= 2 * group.data["eager_bytes"]
        return "high" if twice else "medium"


class ShapeSweep(Speed):
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
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        for event in facts.events("shape_sweep"):
            again = [row for row in event.data["rows"][1:] if row["recompiles"]]
            if again:
                # Torch always compiles sizes 0 and 1 separately.
                storm = [row for row in again if row["value"] not in (0, 1)]
                yield group_of(event, facts, again=again, storm=storm)

    def message(self, group: EventGroup) -> str:
        data = group.data
        again = group.extra["again"]
        values = ", ".join(str(row["value"]) for row in again)
        total = sum(row["recompiles"] for row in again)
        return (
            f"{named(group)} was recompiled {plural(total, 'time')} for"
            f" {len(data['rows'])} values of {data['dimension']}: at {values}"
        )

    def cause(self, group: EventGroup) -> str:
        dimension = group.data["dimension"]
        storm = group.extra["storm"]
        if len(storm) > 1:
            return f"the {dimension} size is compiled in, so another one does not fit"
        if storm:
            return (
                f"the first other {dimension} size shows that it varies; torch then"
                " compiles for any size"
            )
        return f"{dimension} sizes 0 and 1 get code of their own, once"

    def fix(self, group: EventGroup) -> str:
        dimension = group.data["dimension"]
        axis = {"batch": "0", "sequence": "1"}.get(dimension, "d")
        if len(group.extra["storm"]) <= 1:
            return f"warm up with each {dimension} size that you serve"
        return assembled(
            Piece(
                f"mark the {dimension} dimension of each input before the first call:"
                f" torch._dynamo.maybe_mark_dynamic(x, {axis})"
            ),
            setting(group, Setting("compile.dynamic", True)),
            Piece("pad to a few sizes"),
        )

    def severity(self, group: EventGroup) -> Severity:
        storm = len(group.extra["storm"])
        if storm <= 1:
            return "low"
        values = {row["value"] for row in group.data["rows"]}
        return "high" if storm >= 3 and storm + 1 >= len(values - {0, 1}) else "medium"

    def evidence(self, group: EventGroup) -> Iterable[str]:
        for row in group.data["rows"]:
            yield f"{row['value']}: {plural(row['recompiles'], 'recompilation')}"


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"
