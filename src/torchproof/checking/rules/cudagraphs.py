"""CG31x: graphs that were asked for and are not captured, whole or in part.

What torch says of a graph it does not capture comes in with the events, each with the
line that it blames; a rule stands for one kind of reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from torchproof.checking.rules.rule import EventGroup, Facts, Rule, plural, shorten
from torchproof.records import Event, Place, Severity, Status, definition, place_of

_UNNAMED = re.compile(r"\d+|0x[0-9a-f]+")
_OPERATION = re.compile(r"incompatible op \(?([\w.]+)\)?|operator: ([\w.]+\w)")


class Skip(Rule):
    """Base of the rules about graphs that run without CUDA graphs."""

    kind = "cudagraph_skip"
    words: ClassVar[tuple[str, ...]] = ()  # torch's, for this reason

    def matches(self, group: EventGroup) -> bool:
        return any(word in group.data["reason"] for word in self.words)

    def evidence(self, group: EventGroup) -> Iterable[str]:
        yield f"torch says: skipping cudagraphs due to {group.data['reason']}"
        yield from dict.fromkeys(_often(group.events))


def event_groups(facts: Facts) -> Iterator[EventGroup]:
    """One for each reason at each place."""
    groups: dict[tuple[object, ...], list[Event]] = {}
    for event in facts.events("cudagraph_skip"):
        frame = place(event).frame
        where = (frame.file, frame.line) if frame else event.compile_id
        reason = _UNNAMED.sub("", event.data["reason"])
        groups.setdefault((where, reason), []).append(event)
    for events in groups.values():
        runs = sum(event.data["ungraphed"] or 1 for event in events)
        yield EventGroup(tuple(events), place(events[0]), facts, runs)


def place(event: Event) -> Place:
    """The line that torch blames, else the function that was compiled.

    Where that is torch's own, as of its modules, the line that called it.
    """
    own = (definition(event.function),) if event.function else ()
    for frames in (event.frames, own, event.data.get("site", ())):
        found = place_of(frames)
        if found.frame is not None:
            break
    return found


def _often(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        without, runs = event.data["ungraphed"], event.data["runs"]
        if without:
            yield f"{without} of {plural(runs, 'run')} went without a CUDA graph"


def _at(group: EventGroup) -> str:
    return f"`{group.expression}`" if group.expression else group.function


class MutatedInput(Skip):
    """A graph writes to an input in place, so it is not captured.

    ## Why
    A recorded graph reads its inputs from addresses of its own: they are copied there
    before each replay. What the graph writes to the copy would not reach the caller's
    tensor, so torch runs such a graph without CUDA graphs, at every call.

    ## Bad
        def step(x, cache):
            cache.add_(x)
            return cache * 2

    ## Good
        def step(x, cache):
            cache = cache + x      # and the caller keeps what is returned
            return cache * 2, cache

        self.register_buffer("cache", torch.zeros(8))       # or a module's buffer
        torch._dynamo.mark_static_address(cache)            # or an address that stays

    ## Fix safety
    A buffer, or a marked tensor, must keep its address: replace its contents with
    `copy_`, not the tensor itself, or each new one is recorded anew.
    """

    code = "CG311"
    words = ("mutated inputs", "input storage mutation")

    def message(self, group: EventGroup) -> str:
        return f"{_at(group)} changes a graph's input in place: it is not captured"

    def cause(self, group: EventGroup) -> str:
        return (
            "the input is neither a parameter, a buffer nor marked as static, so a"
            " replay would change a copy of it"
        )

    def fix(self, group: EventGroup) -> str:
        return (
            "make the tensor a buffer of the module (register_buffer), or mark it once"
            " with torch._dynamo.mark_static_address(tensor), or return the new value"
            " instead of writing to the input"
        )


class CpuTensor(Skip):
    """A graph on the GPU uses a tensor on the CPU, so it is not captured.

    ## Why
    A CUDA graph holds work of one GPU. What runs on the CPU cannot be recorded, and
    with graph partition switched off one such operation keeps the whole graph out.

    ## Bad
        scale = torch.tensor(0.5)        # on the CPU
        return x.cuda() * scale

    ## Good
        scale = torch.tensor(0.5, device=x.device)

    ## Fix safety
    Same values. The tensor takes a few bytes of the GPU's memory.
    """

    code = "CG312"
    words = ("cpu device",)

    def message(self, group: EventGroup) -> str:
        return f"{_at(group)} needs the CPU: the graph it is in is not captured"

    def cause(self, group: EventGroup) -> str:
        return "a CUDA graph holds work of one GPU only"

    def fix(self, group: EventGroup) -> str:
        return (
            "create the tensor on the GPU (device=x.device), or move it there once"
            " before the first call; a plain Python number needs no device"
        )


class SeveralDevices(Skip):
    """A graph works on several devices, so it is not captured.

    ## Why
    A CUDA graph is recorded on one device.

    ## Bad
        torch.compile(model_on_two_gpus, mode="reduce-overhead")

    ## Good
        first = torch.compile(model.first, mode="reduce-overhead")     # one device each
        second = torch.compile(model.second, mode="reduce-overhead")

    ## Fix safety
    Compiled apart, the parts lose what the compiler fused across them.
    """

    code = "CG313"
    words = ("multiple devices",)

    def message(self, group: EventGroup) -> str:
        told = group.data["reason"].partition("multiple devices: ")[2]
        which = f" ({told})" if told else ""
        return f"{group.function} works on several devices{which}: it is not captured"

    def cause(self, group: EventGroup) -> str:
        return "a CUDA graph is recorded on one device"

    def fix(self, group: EventGroup) -> str:
        return "compile the part on each device by itself, or keep all on one device"


class UncapturableOperator(Skip):
    """An operation that CUDA graphs cannot hold keeps its whole graph out.

    ## Why
    Some operations read a value on the host, allocate by what the data says, or branch:
    a recording cannot repeat that.

    ## Bad
        y = torch.cond(x.sum() > 0, grow, shrink, (x,))

    ## Good
        y = torch.where(x.sum() > 0, grow(x), shrink(x))

    ## Fix safety
    `torch.where` computes both sides: neither may fail or be costly for values that the
    other side is meant for.
    """

    code = "CG314"
    words = (
        "incompatible op",
        "control flow operator",
        "boolean indexing",
        "sparsity not handled",
    )

    def message(self, group: EventGroup) -> str:
        return (
            f"{_at(group)} cannot be part of a CUDA graph{self._named(group)}: the"
            " graph it is in is not captured"
        )

    def cause(self, group: EventGroup) -> str:
        return f"torch says: {shorten(group.data['reason'], 120)}"

    def fix(self, group: EventGroup) -> str:
        return (
            "compute with tensors of fixed shape (torch.where, masks instead of boolean"
            " indexing), or move the operation out of the compiled function"
        )

    def _named(self, group: EventGroup) -> str:
        found = _OPERATION.search(group.data["reason"])
        return f" ({found[1] or found[2]})" if found else ""


class DynamicGraphSkipped(Skip):
    """Graphs whose sizes vary are not captured, as the configuration says.

    ## Why
    `torch._inductor.config.triton.cudagraph_skip_dynamic_graphs` is on: a graph that is
    compiled for varying sizes runs without CUDA graphs, at every call.

    ## Bad
        torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True

    ## Good
        torch._inductor.config.triton.cudagraph_capture_sizes = (1, 8, 64)

    ## Fix safety
    Each size that is captured takes memory of its own.
    """

    code = "CG315"
    words = ("graph with symbolic shapes", "override_cudagraphs annotation")

    def message(self, group: EventGroup) -> str:
        return f"{group.function} is not captured: the program says so"

    def cause(self, group: EventGroup) -> str:
        return shorten(group.data["reason"], 120)

    def fix(self, group: EventGroup) -> str:
        return (
            "leave it so if its sizes vary widely; else capture the sizes that matter"
            " with torch._inductor.config.triton.cudagraph_capture_sizes, or pad inputs"
        )

    def severity(self, group: EventGroup) -> Severity:
        return "low"

    def status(self, group: EventGroup) -> Status:
        return "intentional"


class PendingBackward(Skip):
    """Outputs that still wait for a backward keep graphs from being replayed.

    ## Why
    Memory of a graph is used again when the next step begins. As long as an output of
    an earlier step may yet need its backward, no step can begin, and graphs stay in
    warm-up, where they are slower than without CUDA graphs.

    ## Bad
        for batch in validation:
            losses.append(model(batch))        # with gradients, and no backward

    ## Good
        with torch.no_grad():
            for batch in validation:
                losses.append(model(batch).item())

    ## Fix safety
    Without gradients a later `backward()` through these outputs is no longer possible.
    """

    code = "CG316"
    words = ("still wait for their backward",)

    def message(self, group: EventGroup) -> str:
        return (
            f"{group.function} is never replayed: outputs of earlier steps still wait"
            " for their backward"
        )

    def cause(self, group: EventGroup) -> str:
        return (
            "each call begins while an output of the call before may need its backward,"
            " so none of their memory can be used again"
        )

    def fix(self, group: EventGroup) -> str:
        return (
            "call it under torch.no_grad() where no backward follows, detach what is"
            " kept, or call torch.compiler.cudagraph_mark_step_begin() before each step"
        )


class RerecordLimit(Skip):
    """A graph was recorded so often that torch gives up on capturing it.

    ## Why
    A recording fits only while its inputs stay at their addresses and the same tensors
    are alive. After 128 recordings that did not fit again, torch runs the graph without
    CUDA graphs for the rest of the program.

    ## Bad
        model.cache = torch.zeros_like(model.cache)      # another address at each step

    ## Good
        model.cache.zero_()

    ## Fix safety
    In place, other holders of the tensor see the change as well.
    """

    code = "CG317"
    words = ("re-recording limit", "re-recording threshold")

    def message(self, group: EventGroup) -> str:
        return f"{group.function} was recorded too often: it is no longer captured"

    def cause(self, group: EventGroup) -> str:
        return shorten(group.data["reason"].partition("due to ")[2], 160)

    def fix(self, group: EventGroup) -> str:
        return (
            "keep inputs of the graph at their addresses: write new values into the"
            " same tensors with copy_ instead of replacing the tensors"
        )


class OtherSkip(Skip):
    """A graph is not captured, for a reason that no other rule knows.

    ## Why
    CUDA graphs were asked for, and torch found something that keeps this graph out.

    ## Bad
        expanded = torch.ones(1, 8).expand(8, 8)     # rows that share their memory
        compiled(expanded)

    ## Good
        compiled(expanded.contiguous())

    ## Fix safety
    Depends on the reason that torch gives.
    """

    code = "CG319"

    def matches(self, group: EventGroup) -> bool:
        return True

    def message(self, group: EventGroup) -> str:
        why = shorten(group.data["reason"], 80)
        return f"{group.function} is not captured in a CUDA graph: {why}"

    def cause(self, group: EventGroup) -> str:
        return f"torch says: {shorten(group.data['reason'], 160)}"

    def fix(self, group: EventGroup) -> str:
        reason = group.data["reason"]
        if "overlap" in reason:
            return "hand in tensors whose elements do not share memory: .contiguous()"
        if "cpp" in reason and "wrapper" in reason:
            return "switch off torch._inductor.config.cpp_wrapper where graphs matter"
        return "remove what torch names, or leave CUDA graphs off for this function"


# The first rule that matches takes a skip.
SKIPS: tuple[Skip, ...] = (
    MutatedInput(),
    CpuTensor(),
    SeveralDevices(),
    UncapturableOperator(),
    DynamicGraphSkipped(),
    PendingBackward(),
    RerecordLimit(),
    OtherSkip(),
)
