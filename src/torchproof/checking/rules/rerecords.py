"""CG32x: graphs that are cut, and graphs that are recorded again and again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torchproof.checking.rules.cudagraphs import place
from torchproof.checking.rules.rule import EventGroup, Facts, Rule, plural, shorten
from torchproof.records import Event, Severity

# torch itself warns of more input sizes than this.
_MANY_SIZES = 8
_SOME_SIZES = 2  # a batch and the rest of the data
# Recordings again of what was recorded before: a change or two settles.
_FEW_AGAIN = 2
_MANY_AGAIN = 8
_WARM_UPS = 3  # of one size; one is as it should be, and graphs before it add theirs
_SHOWN = 12


class Capture(Rule):
    """Base of the rules about what was captured, and how often."""

    kind = "cudagraph_rerecord"

    def event_groups(self, facts: Facts) -> Iterator[EventGroup]:
        raise AssertionError(f"{type(self).__name__} does not say what it is about")


def _about(event: Event, facts: Facts, count: int) -> EventGroup:
    return EventGroup((event,), place(event), facts, count)


def _recorded(facts: Facts) -> Iterator[Event]:
    """Graphs, but for backwards where the forward says the same."""
    forward = [e for e in facts.events("cudagraph") if e.data["phase"] != "backward"]
    seen = {event.compile_id for event in forward}
    yield from forward
    for event in facts.events("cudagraph"):
        if event.data["phase"] == "backward" and event.compile_id not in seen:
            yield event


def _runs(graph: Mapping[str, Any]) -> int:
    return sum(graph["turns"].values())


def _replays(graph: Mapping[str, Any]) -> int:
    return int(graph["turns"].get("replayed", 0))


def _pool(graph: Mapping[str, Any]) -> str:
    mebibytes = graph["pool_bytes"] / 2**20
    return f"warming it up and recording it took {mebibytes:.1f} MiB of the pool"


class ManySizes(Capture):
    """One CUDA graph is recorded for each input size.

    ## Why
    A recording holds addresses and launch sizes of one input size. A graph compiled for
    varying sizes is run plainly once and recorded once for each of them, and each
    recording keeps memory.

    ## Bad
        compiled = torch.compile(model, mode="reduce-overhead", dynamic=True)
        for batch in batches:            # of any length
            compiled(batch)

    ## Good
        compiled(pad(batch, to=bucket(batch)))        # a few lengths
        torch._inductor.config.triton.cudagraph_capture_sizes = (64, 128, 256)

    ## Fix safety
    Padding must not change the answer: mask what was added, and cut it off.
    """

    code = "CG321"

    def event_groups(self, facts: Facts) -> Iterator[EventGroup]:
        for event in _recorded(facts):
            if event.data["distinct"] > _SOME_SIZES:
                yield _about(event, facts, event.data["distinct"])

    def message(self, group: EventGroup) -> str:
        graph = group.data
        return (
            f"{group.function} is recorded anew for each of {graph['distinct']} input"
            f" sizes; {_replays(graph)} of {plural(_runs(graph), 'run')} were replays"
        )

    def cause(self, group: EventGroup) -> str:
        return "one CUDA graph is recorded per distinct input size, and kept"

    def fix(self, group: EventGroup) -> str:
        return (
            "pad inputs to a few bucket sizes (torchproof.graph plans and pads them),"
            " capture the sizes that matter with torch._inductor.config.triton"
            ".cudagraph_capture_sizes, or leave graphs of varying sizes out with"
            " torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True"
        )

    def severity(self, group: EventGroup) -> Severity:
        graph = group.data
        if graph["distinct"] <= _MANY_SIZES:
            return "low"
        return "medium" if 2 * _replays(graph) >= _runs(graph) else "high"

    def evidence(self, group: EventGroup) -> Iterable[str]:
        sizes = [
            " and ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
            for shapes, _ in group.data["sizes"]
        ]
        more = f" and {len(sizes) - _SHOWN} more" if len(sizes) > _SHOWN else ""
        yield f"input sizes: {', '.join(sizes[:_SHOWN])}{more}"
        yield _pool(group.data)


class MovedInput(Capture):
    """A graph is recorded again because a parameter is at another address.

    ## Why
    Parameters, buffers and tensors marked as static are not copied before a replay: the
    recording holds their addresses. Another tensor in their place, even of the same
    values, is recorded anew.

    ## Bad
        model.weight = torch.nn.Parameter(average)         # at each step
        model.load_state_dict(state, assign=True)

    ## Good
        with torch.no_grad():
            model.weight.copy_(average)

    ## Fix safety
    In place, other holders of the tensor see the change as well.
    """

    code = "CG322"

    def event_groups(self, facts: Facts) -> Iterator[EventGroup]:
        for event in _recorded(facts):
            if count := event.data["again"].get("moved", 0):
                yield _about(event, facts, count)

    def message(self, group: EventGroup) -> str:
        names = list(group.data["moved"])
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        what = f"{names[0]}{more}" if names else "a static input"
        again = plural(group.count or 0, "time")
        return f"{group.function} was recorded again {again}: {what} moved"

    def cause(self, group: EventGroup) -> str:
        return "a recording holds the addresses of parameters, and there is another one"

    def fix(self, group: EventGroup) -> str:
        return (
            "write new values into the same tensor (copy_ under torch.no_grad()), do"
            " not replace it; load_state_dict without assign=True does so"
        )

    def severity(self, group: EventGroup) -> Severity:
        return _again(group)

    def evidence(self, group: EventGroup) -> Iterable[str]:
        for name, frames in list(group.data["uses"].items())[:_SHOWN]:
            at = f", used at {frames[-1].file}:{frames[-1].line}" if frames else ""
            yield f"moved: {name}{at}"
        yield _pool(group.data)


class OtherRecording(Capture):
    """A graph is recorded again because what ran or lived before it differs.

    ## Why
    A recording follows the one before it and knows which outputs of that were alive. In
    another order of calls, or with other outputs kept, it does not fit.

    ## Bad
        outputs = compiled(x)
        if step % 2:
            kept = outputs         # alive at every other step when the next begins

    ## Good
        kept = outputs.clone() if step % 2 else None
        del outputs

    ## Fix safety
    Same values; a clone takes memory of its own.
    """

    code = "CG323"

    def event_groups(self, facts: Facts) -> Iterator[EventGroup]:
        for event in _recorded(facts):
            again = event.data["again"]
            count = sum(number for cause, number in again.items() if cause != "moved")
            if count > _FEW_AGAIN:
                yield _about(event, facts, count)

    def message(self, group: EventGroup) -> str:
        again = plural(group.count or 0, "time")
        return (
            f"{group.function} was recorded again {again}: what ran or was alive"
            " before it differs from call to call"
        )

    def cause(self, group: EventGroup) -> str:
        told = {
            "inputs": "an output of an earlier graph comes in at another address",
            "liveness": "other outputs of earlier graphs are still alive",
            "path": "other graphs ran before it in the step",
        }
        again = group.data["again"]
        causes = [cause for cause in again if cause != "moved"]
        return "; ".join(told.get(cause, cause) for cause in causes)

    def fix(self, group: EventGroup) -> str:
        return (
            "call compiled functions in the same order at each step, drop or clone"
            " their outputs at the same point, and mark where steps begin with"
            " torch.compiler.cudagraph_mark_step_begin()"
        )

    def severity(self, group: EventGroup) -> Severity:
        return _again(group)

    def evidence(self, group: EventGroup) -> Iterable[str]:
        yield _pool(group.data)


def _again(group: EventGroup) -> Severity:
    """What settles is low: a change or two, or more runs since than recordings."""
    graph, count = group.data, group.count or 0
    if graph["since"] >= (1 if count <= _FEW_AGAIN else graph["turns"]["recorded"]):
        return "low"
    storm = count > _MANY_AGAIN or 2 * count >= _runs(graph)
    return "high" if storm and count > _FEW_AGAIN else "medium"


class PartlyCaptured(Capture):
    """An operation is left out of a CUDA graph, which is cut in two there.

    ## Why
    An operation that cannot be recorded runs by itself, between two recordings. That
    costs a launch and a copy or two; where it reads from the device, also a wait.

    ## Bad
        scale = torch.tensor(0.5)             # on the CPU, copied at each call
        return model(x) * scale

    ## Good
        scale = torch.tensor(0.5, device=x.device)

    ## Fix safety
    Same values.
    """

    code = "CG318"
    kind = "cudagraph_skip"

    def event_groups(self, facts: Facts) -> Iterator[EventGroup]:
        whole = {event.compile_id for event in facts.events("cudagraph_skip")}
        groups: dict[object, list[Event]] = {}
        for event in facts.events("cudagraph_split"):
            frame = place(event).frame
            where = (frame.file, frame.line) if frame else event.compile_id
            if event.compile_id not in whole:
                groups.setdefault(where, []).append(event)
        for events in groups.values():
            first = place(events[0])
            yield EventGroup(tuple(events), first, facts, len(events))

    def message(self, group: EventGroup) -> str:
        at = f"`{group.expression}`" if group.expression else group.function
        return f"{at} is left out of the CUDA graph, which is cut in two there"

    def cause(self, group: EventGroup) -> str:
        told = [(e.data["reason"], e.data["operation"]) for e in group.events]
        reasons, operations = map(dict.fromkeys, zip(*told, strict=True))
        return f"{', '.join(reasons)}: {shorten(', '.join(operations), 100)}"

    def fix(self, group: EventGroup) -> str:
        reasons = " ".join(event.data["reason"] for event in group.events)
        if "cpu" in reasons or "evice" in reasons:  # DeviceCopy, cross-device
            return (
                "create the tensor on the GPU (device=x.device), or move it there once"
                " before the first call; a plain Python number needs no device"
            )
        return (
            "compute with tensors of fixed shape (torch.where, masks instead of boolean"
            " indexing), or move the operation out of the compiled function"
        )

    def severity(self, group: EventGroup) -> Severity:
        return "low"


class NeverReplayed(Capture):
    """A graph is warmed up again and again, and never recorded.

    ## Why
    The first run of a graph warms it up, the second records it. While outputs of an
    earlier warm-up are alive in the same step, the next run warms up as well: without a
    point at which a step begins, no graph is ever recorded, and warming up is slower
    than running without CUDA graphs.

    ## Bad
        outputs = [compiled(x) for x in batches]      # gradients, and no step begins

    ## Good
        for x in batches:
            torch.compiler.cudagraph_mark_step_begin()
            compiled(x).sum().backward()

    ## Fix safety
    What is kept across the mark must be cloned before it.
    """

    code = "CG324"
    kind = "cudagraph_skip"

    def event_groups(self, facts: Facts) -> Iterator[EventGroup]:
        known = {event.compile_id for event in facts.events("cudagraph_skip")}
        for event in _recorded(facts):
            runs = max(sum(each.values()) for _, each in event.data["sizes"])
            stuck = event.data["turns"].keys() == {"warmed_up"}
            if stuck and runs > _WARM_UPS and event.compile_id not in known:
                yield _about(event, facts, runs)

    def message(self, group: EventGroup) -> str:
        return (
            f"{group.function} was warmed up in each of"
            f" {plural(_runs(group.data), 'run')} and never recorded"
        )

    def cause(self, group: EventGroup) -> str:
        return "outputs of one run were alive when the next began, in the same step"

    def fix(self, group: EventGroup) -> str:
        return (
            "call torch.compiler.cudagraph_mark_step_begin() where a step begins, under"
            " torch.no_grad() where no backward follows, and clone what is kept"
        )

    def severity(self, group: EventGroup) -> Severity:
        return "high"


CAPTURES: tuple[Capture, ...] = (
    PartlyCaptured(),
    NeverReplayed(),
    ManySizes(),
    MovedInput(),
    OtherRecording(),
)
