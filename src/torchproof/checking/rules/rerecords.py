"""CG318, CG32x: CUDA graphs that are split, or recorded again and again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.cudagraphs import line_of, place
from torchproof.checking.rules.rule import (
    EventGroup,
    Facts,
    G,
    Rule,
    grouped,
    plural,
    shorten,
)
from torchproof.records import (
    GraphSkipEvent,
    GraphSplitEvent,
    RecordingEvent,
    Severity,
)

# torch itself warns if there are more input sizes than this.
_MANY_SIZES = 8
_SOME_SIZES = 2  # full batches, and the smaller last one
# Repeated recordings of one graph: one or two changes are normal.
_FEW_AGAIN = 2
_MANY_AGAIN = 8
_WARM_UPS = 3  # of one size; one is normal, and earlier graphs cause more
_SHOWN = 12


RecordingGroup = EventGroup[RecordingEvent]
SplitGroup = EventGroup[GraphSplitEvent]


class Capture(Rule[G]):
    """Base class of the rules for what was captured, and how often."""

    kind = "cudagraph_rerecord"
    parts = ("lifetimes",)
    reference = torch_pages.CUDAGRAPHS


def _about(event: RecordingEvent, facts: Facts, count: int) -> RecordingGroup:
    return RecordingGroup((event,), place(event), facts, count=count)


def _recorded(facts: Facts) -> Iterator[RecordingEvent]:
    """The recorded graphs, without a backward if its forward is among them."""
    forward = [e for e in facts.of(RecordingEvent) if e.phase != "backward"]
    forward_ids = {event.compile_id for event in forward}
    yield from forward
    for event in facts.of(RecordingEvent):
        if event.phase == "backward" and event.compile_id not in forward_ids:
            yield event


def _pool(graph: RecordingEvent) -> str:
    mebibytes = graph.pool_bytes / 2**20
    return f"its warm-ups and recordings took {mebibytes:.1f} MiB of the pool"


class ManySizes(Capture[RecordingGroup]):
    """One CUDA graph is recorded for each input size.

    ## Why
    A recording holds the addresses and launch sizes of one input size. Torch runs a
    graph with dynamic sizes once and records it once for each size, and each recording
    keeps memory.

    ## Bad
        compiled = torch.compile(model, mode="reduce-overhead", dynamic=True)
        for batch in batches:            # of any length
            compiled(batch)

    ## Good
        compiled(pad(batch, to=bucket(batch)))        # a few lengths
        torch._inductor.config.triton.cudagraph_capture_sizes = (64, 128, 256)

    ## Fix safety
    Padding must not change the output: mask the added values, and cut them off.
    """

    code = "CG321"
    cause_text = "one CUDA graph is recorded per distinct input size, and kept"
    advice_text = (
        "pad inputs to a few sizes (`pad` and `buckets` of torchproof.graph), capture"
        " the sizes that matter (torch._inductor.config.triton.cudagraph_capture_sizes)"
        " or none (torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True)"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[RecordingGroup]:
        for event in _recorded(facts):
            if event.distinct > _SOME_SIZES:
                yield _about(event, facts, event.distinct)

    def message(self, group: RecordingGroup) -> str:
        graph = group.first
        return (
            f"{group.function} is recorded again for each of {graph.distinct} input"
            f" sizes; {graph.replays} of {plural(graph.runs, 'run')} were replays"
        )

    def severity(self, group: RecordingGroup) -> Severity:
        graph = group.first
        if graph.distinct <= _MANY_SIZES:
            return "low"
        return "medium" if 2 * graph.replays >= graph.runs else "high"

    def evidence(self, group: RecordingGroup) -> Iterable[str]:
        sizes = [
            " and ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
            for shapes, _ in group.first.sizes
        ]
        more = f" and {len(sizes) - _SHOWN} more" if len(sizes) > _SHOWN else ""
        yield f"input sizes: {', '.join(sizes[:_SHOWN])}{more}"
        yield _pool(group.first)


class MovedInput(Capture[RecordingGroup]):
    """A graph is recorded again because a parameter has another address.

    ## Why
    Torch does not copy parameters, buffers and tensors marked as static before a
    replay: the recording holds their addresses. If another tensor takes their place,
    even with the same values, torch records the graph again.

    ## Bad
        model.weight = torch.nn.Parameter(average)         # at each step
        model.load_state_dict(state, assign=True)

    ## Good
        with torch.no_grad():
            model.weight.copy_(average)

    ## Fix safety
    An in-place change is visible to every holder of the tensor.
    """

    code = "CG322"
    cause_text = (
        "a recording holds the addresses of parameters, and there is another one"
    )
    advice_text = (
        "write new values into the same tensor (copy_ under torch.no_grad()) instead of"
        " replacing it; load_state_dict without assign=True does this"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[RecordingGroup]:
        for event in _recorded(facts):
            if count := event.again.get("moved", 0):
                yield _about(event, facts, count)

    def message(self, group: RecordingGroup) -> str:
        names = list(group.first.moved)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        what = f"{names[0]}{more}" if names else "a static input"
        again = plural(group.count or 0, "time")
        return f"{group.function} was recorded again {again}: {what} moved"

    def severity(self, group: RecordingGroup) -> Severity:
        return _rerecord_severity(group)

    def evidence(self, group: RecordingGroup) -> Iterable[str]:
        for name, frames in list(group.first.uses.items())[:_SHOWN]:
            at = f", used at {frames[-1].file}:{frames[-1].line}" if frames else ""
            yield f"moved: {name}{at}"
        yield _pool(group.first)


class OtherRecording(Capture[RecordingGroup]):
    """A graph is recorded again because earlier graphs or live outputs differ.

    ## Why
    A recording follows the one before it, and depends on which outputs of that one were
    alive. After another order of calls, or with other live outputs, it is not valid.

    ## Bad
        outputs = compiled(x)
        if step % 2:
            kept = outputs         # alive in every second step when the next one begins

    ## Good
        kept = outputs.clone() if step % 2 else None
        del outputs

    ## Fix safety
    The values are the same. A clone takes its own memory.
    """

    code = "CG323"
    advice_text = (
        "call compiled functions in the same order at each step, delete or clone their"
        " outputs at the same point, and mark where steps begin with"
        " torch.compiler.cudagraph_mark_step_begin()"
    )
    message_text = (
        "{at.function} was recorded again {at.times}: the graphs that run before it, or"
        " their live outputs, differ from call to call"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[RecordingGroup]:
        for event in _recorded(facts):
            again = event.again
            count = sum(number for cause, number in again.items() if cause != "moved")
            if count > _FEW_AGAIN:
                yield _about(event, facts, count)

    def cause(self, group: RecordingGroup) -> str:
        causes_in_words = {
            "inputs": "an output of an earlier graph comes in at another address",
            "liveness": "other outputs of earlier graphs are still alive",
            "path": "other graphs ran before it in the step",
        }
        again = group.first.again
        causes = [cause for cause in again if cause != "moved"]
        return "; ".join(causes_in_words.get(cause, cause) for cause in causes)

    def severity(self, group: RecordingGroup) -> Severity:
        return _rerecord_severity(group)

    def evidence(self, group: RecordingGroup) -> Iterable[str]:
        yield _pool(group.first)


def _rerecord_severity(group: RecordingGroup) -> Severity:
    """Low if it settles: one or two changes, or more runs since than recordings."""
    graph = group.first
    count = group.count or 0
    if graph.since >= (1 if count <= _FEW_AGAIN else graph.turns["recorded"]):
        return "low"
    storm = count > _MANY_AGAIN or 2 * count >= graph.runs
    return "high" if storm and count > _FEW_AGAIN else "medium"


class PartlyCaptured(Capture[SplitGroup]):
    """An operation is excluded from a CUDA graph, which splits the graph in two.

    ## Why
    An operation that torch cannot record runs separately, between two recordings. This
    costs a launch and a few copies. If the operation reads from the device, the host
    also waits.

    ## Bad
        scale = torch.tensor(0.5)             # on the CPU, copied at each call
        return model(x) * scale

    ## Good
        scale = torch.tensor(0.5, device=x.device)

    ## Fix safety
    The values are the same.
    """

    code = "CG318"
    kind = "cudagraph_skip"
    placed = True
    run_severity = "low"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[SplitGroup]:
        whole = {event.compile_id for event in facts.of(GraphSkipEvent)}
        splits = [e for e in facts.of(GraphSplitEvent) if e.compile_id not in whole]
        for events in grouped(splits, line_of):
            first = place(events[0])
            yield SplitGroup(tuple(events), first, facts, count=len(events))

    def message(self, group: SplitGroup) -> str:
        at = f"`{group.expression}`" if group.expression else group.function
        return f"{at} is excluded from the CUDA graph, which is split in two there"

    def cause(self, group: SplitGroup) -> str:
        pairs = [(e.reason, e.operation) for e in group.events]
        reasons, operations = map(dict.fromkeys, zip(*pairs, strict=True))
        return f"{', '.join(reasons)}: {shorten(', '.join(operations), 100)}"

    def advice(self, group: SplitGroup) -> str:
        reasons = " ".join(event.reason for event in group.events)
        if "cpu" in reasons or "evice" in reasons:  # DeviceCopy, cross-device
            return (
                "create the tensor on the GPU (device=x.device), or move it there once"
                " before the first call; a plain Python number needs no device"
            )
        return (
            "compute with tensors of fixed shape (torch.where, masks instead of boolean"
            " indexing), or move the operation out of the compiled function"
        )


class NeverReplayed(Capture[RecordingGroup]):
    """A graph is warmed up again and again, and never recorded.

    ## Why
    The first run of a graph is a warm-up, and the second is recorded. While outputs of
    an earlier warm-up are alive in the same step, the next run is a warm-up too. If no
    step ever begins, torch never records the graph. Warm-ups are slower than running
    without CUDA graphs.

    ## Bad
        outputs = [compiled(x) for x in batches]      # gradients, and no step begins

    ## Good
        for x in batches:
            torch.compiler.cudagraph_mark_step_begin()
            compiled(x).sum().backward()

    ## Fix safety
    Clone the outputs that you keep before the next mark.
    """

    code = "CG324"
    kind = "cudagraph_skip"
    placed = True
    cause_text = "outputs of one run were alive when the next began, in the same step"
    advice_text = (
        "call torch.compiler.cudagraph_mark_step_begin() where a step begins, use"
        " torch.no_grad() if no backward follows, and clone the outputs you keep"
    )
    run_severity = "high"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[RecordingGroup]:
        skipped = {event.compile_id for event in facts.of(GraphSkipEvent)}
        for event in _recorded(facts):
            runs = max(sum(each.values()) for _, each in event.sizes)
            stuck = event.turns.keys() == {"warmed_up"}
            if stuck and runs > _WARM_UPS and event.compile_id not in skipped:
                yield _about(event, facts, runs)

    def message(self, group: RecordingGroup) -> str:
        return (
            f"{group.function} was warmed up in each of"
            f" {plural(group.first.runs, 'run')} and never recorded"
        )
