"""SP52x, SP53x, SP54x: what compiled steps cost in addition to their work.

Guards checked in every call, device memory, and recompiles for new sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import EventGroup, Facts, plural
from torchproof.checking.rules.speed import (
    Speed,
    duration,
    group_of,
    is_comparable,
    is_slower,
    named,
)
from torchproof.records import Severity

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
        "do more work in one call: compile a larger region or batch calls. If modules"
        " and globals never change after the first call, skip their guards:"
        " torch.compile(..., options={{'guard_filter_fn':"
        " torch.compiler.skip_guard_on_all_nn_modules_unsafe}}); `torchproof bench"
        " --guards` measures what this saves and lists the conditions that are no"
        " longer checked"
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
    fix_text = (
        "if memory is short, compile without CUDA graphs (mode='default'), pad inputs"
        " to a few sizes, or compile only the repeated blocks; measure each option with"
        " `torchproof bench`"
    )

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
        torch._dynamo.mark_dynamic(x, 0)         # before the first call

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
        seconds = [row["compile_s"] for row in again if row.get("compile_s")]
        took = f", {duration(sum(seconds))} in total" if seconds else ""
        return (
            f"{named(group)} was recompiled {plural(total, 'time')} for"
            f" {len(data['rows'])} values of {data['dimension']}: at {values}{took}"
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
            return (
                f"warm up with each {dimension} size that you serve, or mark the"
                f" dimension with torch._dynamo.mark_dynamic(x, {axis}) before the"
                " first call"
            )
        return (
            f"mark the {dimension} dimension with torch._dynamo.mark_dynamic(x, {axis})"
            " before the first call, compile with dynamic=True, or pad to a few sizes"
        )

    def severity(self, group: EventGroup) -> Severity:
        storm = len(group.extra["storm"])
        if storm <= 1:
            return "low"
        values = {row["value"] for row in group.data["rows"]}
        return "high" if storm >= 3 and storm + 1 >= len(values - {0, 1}) else "medium"

    def evidence(self, group: EventGroup) -> Iterable[str]:
        for row in group.data["rows"]:
            ms = f"{row['ms']:.3f} ms" if row.get("ms") is not None else "-"
            yield f"{row['value']}: {ms}, {plural(row['recompiles'], 'recompilation')}"


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"
