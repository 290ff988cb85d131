"""CG31x, CG32x: graphs without a CUDA graph, split ones, and repeated recordings.

Each rule about a skipped graph stands for some of torch's reasons.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import (
    EventGroup,
    Facts,
    G,
    Match,
    Rule,
    event_place,
    grouped,
    plural,
    shorten,
)
from torchproof.checking.static.flow import Flow
from torchproof.records import (
    CaptureEvent,
    GraphSkipEvent,
    GraphSplitEvent,
    Place,
    RecordingEvent,
    Setting,
    Severity,
    Status,
    Symptom,
)

_UNNAMED = re.compile(r"\d+|0x[0-9a-f]+")
_MADE = {"tensor", "arange", "zeros", "ones", "full", "linspace", "eye"}
_ON_GPU = "create the tensor on the GPU (device=x.device), once before the first call"
_FIXED_SHAPE = "use tensors of fixed shape, as torch.where instead of a branch or mask"
_IN_LIBRARY = (
    "leave it if the calls are long: the graph runs as without CUDA graphs, with one"
    " launch for each kernel"
)
# torch itself warns if there are more input sizes than this.
_MANY_SIZES = 8
_SOME_SIZES = 2  # full batches, and the smaller last one
# Repeated recordings of one graph: one or two changes are normal.
_FEW_AGAIN = 2
_MANY_AGAIN = 8
_WARM_UPS = 3  # of one size; one is normal, and earlier graphs cause more
_SHOWN = 12

SkipGroup = EventGroup[GraphSkipEvent]
SplitGroup = EventGroup[GraphSplitEvent]
RecordingGroup = EventGroup[RecordingEvent]


class Capture(Rule[G]):
    """Base class of the rules for what was captured, and how often."""

    kind = "cudagraph_skip"
    parts = ("lifetimes",)
    reference = torch_pages.CUDAGRAPHS
    placed = True


class Skip(Capture[SkipGroup]):
    """Base class of the rules for graphs that run without CUDA graphs."""

    reasons: ClassVar[tuple[str, ...]] = ()  # torch's words for this reason
    cause_text = "torch says: {reason}"
    library_text: ClassVar[str] = _IN_LIBRARY  # the advice where nobody edits the line

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[SkipGroup]:
        """One group per reason and place."""

        def key(event: GraphSkipEvent) -> object:
            return line_of(event), _UNNAMED.sub("", event.reason)

        for events in grouped(facts.of(GraphSkipEvent), key):
            runs = sum(event.ungraphed or 1 for event in events)
            yield SkipGroup(tuple(events), place(events[0]), facts, count=runs)

    def matches(self, group: SkipGroup) -> bool:
        return any(word in group.first.reason for word in self.reasons)

    def words(self, group: SkipGroup) -> dict[str, object]:
        return {"reason": shorten(group.first.reason, 140)}

    def advice(self, group: SkipGroup) -> str:
        in_library = group.place.owner == "library"
        return self.library_text if in_library else super().advice(group)

    def evidence(self, group: SkipGroup) -> Iterable[str]:
        yield f"torch says: skipping cudagraphs due to {group.first.reason}"
        yield from dict.fromkeys(
            f"{event.ungraphed} of {plural(event.runs, 'run')} used no CUDA graph"
            for event in group.events
            if event.ungraphed and event.runs
        )

    def symptom(self, group: SkipGroup) -> Symptom | None:
        return Symptom(text=group.first.reason)


def place(event: CaptureEvent) -> Place:
    """The line that torch blames, else the compiled function.

    If that function is torch's own, as in its modules, the line that called it.
    """
    return event_place(event, event.site)


def line_of(event: CaptureEvent) -> object:
    frame = place(event).frame
    return (frame.file, frame.line) if frame else event.compile_id


class MutatedInput(Skip):
    """A graph writes to an input in place, so torch does not capture it.

    ## Why
    A CUDA graph reads its inputs from fixed addresses, so torch copies the inputs there
    before each replay. A write would change the copy and not the caller's tensor. Torch
    therefore runs such a graph without CUDA graphs, in every call.

    ## Bad
        def step(x, cache):
            cache.add_(x)
            return cache * 2

    ## Good
        def step(x, cache):
            cache = cache + x      # and the caller keeps the returned cache
            return cache * 2, cache

        self.register_buffer("cache", torch.zeros(8))       # or a buffer of the module
        torch._dynamo.mark_static_address(cache)            # or a fixed address

    ## Fix safety
    A buffer, or a marked tensor, must keep its address: replace its contents with
    `copy_`, not the tensor itself. Torch records the graph again for each new tensor.
    """

    code = "CG311"
    reasons = ("mutated inputs", "input storage mutation")
    message_text = "{at.what} changes an input in place: no CUDA graph holds its graph"
    cause_text = (
        "the input is neither a parameter, a buffer nor marked as static, so a replay"
        " would change a copy of it"
    )
    advice_text = "return the new value as a new tensor, and let the caller keep it"
    library_text = (
        "mark the tensor that you pass in once, where you create it:"
        " torch._dynamo.mark_static_address(tensor)"
    )


class CpuTensor(Skip):
    """A graph on the GPU uses a tensor on the CPU, so torch does not capture it.

    ## Why
    A CUDA graph holds work of one GPU. Torch cannot record work that runs on the CPU.
    With graph partition switched off, one such operation excludes the whole graph.

    ## Bad
        scale = torch.tensor(0.5)        # on the CPU
        return x.cuda() * scale

    ## Good
        scale = torch.tensor(0.5, device=x.device)

    ## Fix safety
    The values are the same. The tensor takes a few bytes of GPU memory.
    """

    code = "CG312"
    source_text = "`{at.expression}` uses the CPU in each call of {at.function}"
    reasons = ("cpu device",)
    message_text = "{at.what} needs the CPU: torch does not capture its graph"
    cause_text = "a CUDA graph holds work of one GPU only"
    advice_text = _ON_GPU
    source_severity = "low"
    nodes = (ast.Call,)
    shown_by = ("CG312", "CG318")

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        if _is_scalar(node, at) or _is_moved(node, at):
            yield Match(node)
        elif _leaves(node, at):
            yield Match(node, advice="move the tensor after the compiled call")


def _makes(node: ast.expr, at: Flow) -> bool:
    """Whether a call creates a tensor without a device argument."""
    if not isinstance(node, ast.Call):
        return False
    dotted = at.dotted(node.func) or ""
    named = any(k.arg in ("device", None) for k in node.keywords)
    return dotted.startswith("torch.") and dotted[6:] in _MADE and not named


def _is_scalar(node: ast.Call, at: Flow) -> bool:
    """Whether a call is `torch.tensor` of a literal, as `torch.tensor(0.5)`."""
    if not _makes(node, at) or at.dotted(node.func) != "torch.tensor":
        return False
    return bool(node.args) and all(
        isinstance(n, ast.Constant | ast.UnaryOp | ast.List | ast.Tuple | ast.USub)
        for n in ast.walk(node.args[0])
        if not isinstance(n, ast.expr_context)
    )


def _is_moved(node: ast.Call, at: Flow) -> bool:
    """Whether a call is `torch.arange(n).to(x.device)`: created on the CPU first."""
    called = node.func
    if not isinstance(called, ast.Attribute) or called.attr not in ("to", "cuda"):
        return False
    if not _makes(called.value, at):
        return False
    if called.attr == "cuda":
        return True
    targets = [*node.args, *(k.value for k in node.keywords if k.arg == "device")]
    return any((at.dotted(g) or "").rpartition(".")[2] == "device" for g in targets)


def _leaves(node: ast.Call, at: Flow) -> bool:
    called = node.func
    if not isinstance(called, ast.Attribute) or not at.kind(called.value).is_tensor:
        return False
    if called.attr == "cpu":
        return True
    text = [a.value for a in node.args if isinstance(a, ast.Constant)]
    return called.attr == "to" and "cpu" in text


class SeveralDevices(Skip):
    """A graph uses several devices, so torch does not capture it.

    ## Why
    A CUDA graph is recorded on one device.

    ## Bad
        torch.compile(model_on_two_gpus, mode="reduce-overhead")

    ## Good
        first = torch.compile(model.first, mode="reduce-overhead")     # one device each
        second = torch.compile(model.second, mode="reduce-overhead")

    ## Fix safety
    The compiler cannot fuse operations across separately compiled parts.
    """

    code = "CG313"
    reasons = ("multiple devices",)
    message_text = "{at.function} uses several devices: torch does not capture it"
    advice_text = "compile the part on each device separately"


class UncapturableOperator(Skip):
    """A graph contains an operation that a CUDA graph cannot hold.

    ## Why
    Some operations read a value on the host, allocate memory depending on the data, or
    branch. A replay cannot repeat that, so torch does not capture the whole graph.

    ## Bad
        y = torch.cond(x.sum() > 0, grow, shrink, (x,))

    ## Good
        y = torch.where(x.sum() > 0, grow(x), shrink(x))

    ## Fix safety
    `torch.where` computes both sides: neither may fail, or be expensive, for values
    that belong to the other side.
    """

    code = "CG314"
    reasons = (
        "incompatible op",
        "control flow operator",
        "boolean indexing",
        "sparsity not handled",
    )
    message_text = (
        "{at.what} cannot be part of a CUDA graph: torch does not capture its graph"
    )
    advice_text = _FIXED_SHAPE


class DynamicGraphSkipped(Skip):
    """The configuration excludes graphs with dynamic sizes from CUDA graphs.

    ## Why
    `torch._inductor.config.triton.cudagraph_skip_dynamic_graphs` is True: a graph that
    is compiled for dynamic sizes runs without CUDA graphs, in every call.

    ## Bad
        torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True

    ## Good
        torch._inductor.config.triton.cudagraph_capture_sizes = (1, 8, 64)

    ## Fix safety
    Each captured size takes its own memory.
    """

    code = "CG315"
    reasons = ("graph with symbolic shapes", "override_cudagraphs annotation")
    message_text = "torch does not capture {at.function}: the configuration excludes it"
    advice_text = (
        "leave it if the sizes vary widely: each size would be recorded, and take"
        " memory of its own"
    )
    run_severity = "low"

    def status(self, group: SkipGroup) -> Status:
        return "intentional"


class PendingBackward(Skip):
    """Outputs with a pending backward prevent replays of CUDA graphs.

    ## Why
    Torch reuses the memory of a graph when the next step begins. While an output of an
    earlier step may still need its backward, no step can begin. The graphs stay in
    warm-up, where they are slower than without CUDA graphs.

    ## Bad
        for batch in validation:
            losses.append(model(batch))        # with gradients, and no backward

    ## Good
        with torch.no_grad():
            for batch in validation:
                losses.append(model(batch).item())

    ## Fix safety
    Without gradients, a later `backward()` through these outputs is not possible.
    """

    code = "CG316"
    reasons = ("still wait for their backward",)
    message_text = (
        "{at.function} is never replayed: outputs of earlier steps still need their"
        " backward"
    )
    cause_text = (
        "each call begins while an output of the call before may need its backward, so"
        " none of their memory can be used again"
    )
    advice_text = (
        "call backward() before the next call, and make calls without a backward under"
        " torch.no_grad()"
    )


class RerecordLimit(Skip):
    """A graph was recorded so often that torch no longer captures it.

    ## Why
    A recording is valid only while its inputs keep their addresses and the same tensors
    are alive. After 128 recordings of one graph, torch runs it without CUDA graphs for
    the rest of the program.

    ## Bad
        model.cache = torch.zeros_like(model.cache)      # another address at each step

    ## Good
        model.cache.zero_()

    ## Fix safety
    An in-place change is visible to every holder of the tensor.
    """

    code = "CG317"
    reasons = ("re-recording limit", "re-recording threshold")
    message_text = "{at.function} was recorded too often: torch no longer captures it"
    advice_text = (
        "write new values into the same tensors with copy_, instead of replacing the"
        " tensors"
    )


class OtherSkip(Skip):
    """Torch does not capture a graph, for a reason that no other rule covers.

    ## Why
    The program asked for CUDA graphs, but torch found a reason not to capture this
    graph.

    ## Bad
        expanded = torch.ones(1, 8).expand(8, 8)     # rows that share their memory
        compiled(expanded)

    ## Good
        compiled(expanded.contiguous())

    ## Fix safety
    Depends on the reason that torch gives.
    """

    code = "CG319"

    message_text = "torch does not capture {at.function} in a CUDA graph: {brief}"
    advice_text = _IN_LIBRARY

    def matches(self, group: SkipGroup) -> bool:
        return True

    def words(self, group: SkipGroup) -> dict[str, object]:
        brief = shorten(group.first.reason, 60)
        return {**super().words(group), "brief": brief}

    def advice(self, group: SkipGroup) -> str:
        if "overlap" in group.first.reason:
            return "pass tensors whose elements do not share memory: .contiguous()"
        return super().advice(group)

    def setting(self, group: SkipGroup) -> Setting | None:
        is_cpp = re.search(r"cpp.wrapper", group.first.reason)
        return Setting("inductor.cpp_wrapper", False) if is_cpp else None


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
    run_severity = "low"
    message_text = "{at.what} is excluded from the CUDA graph, which is split in two"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[SplitGroup]:
        whole = {event.compile_id for event in facts.of(GraphSkipEvent)}
        splits = [e for e in facts.of(GraphSplitEvent) if e.compile_id not in whole]
        for events in grouped(splits, line_of):
            first = place(events[0])
            yield SplitGroup(tuple(events), first, facts, count=len(events))

    def cause(self, group: SplitGroup) -> str:
        pairs = [(e.reason, e.operation) for e in group.events]
        reasons, operations = map(dict.fromkeys, zip(*pairs, strict=True))
        return f"{', '.join(reasons)}: {shorten(', '.join(operations), 100)}"

    def advice(self, group: SplitGroup) -> str:
        if group.place.owner == "library":
            return "leave it: it costs a launch and a few copies in each call"
        reasons = " ".join(event.reason for event in group.events)
        on_cpu = "cpu" in reasons or "evice" in reasons  # DeviceCopy, cross-device
        return _ON_GPU if on_cpu else _FIXED_SHAPE


class Recorded(Capture[RecordingGroup]):
    """Base class of the rules for the recordings of one graph; each is a family."""

    kind = "cudagraph_rerecord"
    placed = False

    @classmethod
    def family(cls) -> type[Rule[RecordingGroup]]:
        return cls

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[RecordingGroup]:
        """The recorded graphs, without a backward if its forward is among them."""
        events = facts.of(RecordingEvent)
        forward = {e.compile_id for e in events if e.phase != "backward"}
        skipped = {event.compile_id for event in facts.of(GraphSkipEvent)}
        for event in events:
            is_own = event.phase != "backward" or event.compile_id not in forward
            is_new = event.compile_id not in skipped or cls.kind != "cudagraph_skip"
            if is_own and is_new and (count := cls.times(event)):
                yield RecordingGroup((event,), place(event), facts, count=count)

    @classmethod
    def times(cls, graph: RecordingEvent) -> int:
        """How often a graph had the fault of this rule."""
        raise NotImplementedError

    def words(self, group: RecordingGroup) -> dict[str, object]:
        return {"graph": group.first, "runs": plural(group.first.runs, "run")}

    def severity(self, group: RecordingGroup) -> Severity:
        """Low if it settles: a change or two, or more runs since than recordings."""
        graph = group.first
        count = group.count or 0
        if graph.since >= (1 if count <= _FEW_AGAIN else graph.turns["recorded"]):
            return "low"
        storm = count > _MANY_AGAIN or 2 * count >= graph.runs
        return "high" if storm and count > _FEW_AGAIN else "medium"

    def evidence(self, group: RecordingGroup) -> Iterable[str]:
        mebibytes = group.first.pool_bytes / 2**20
        yield f"its warm-ups and recordings took {mebibytes:.1f} MiB of the pool"


class NeverReplayed(Recorded):
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
    message_text = "{at.function} was warmed up in each of {runs} and never recorded"
    cause_text = "outputs of one run were alive when the next began, in the same step"
    advice_text = (
        "call torch.compiler.cudagraph_mark_step_begin() before each step, and clone"
        " the outputs that you keep"
    )

    @classmethod
    def times(cls, graph: RecordingEvent) -> int:
        runs = max(sum(size.runs.values()) for size in graph.sizes)
        stuck = graph.turns.keys() == {"warmed_up"}
        return runs if stuck and runs > _WARM_UPS else 0

    def severity(self, group: RecordingGroup) -> Severity:
        return "high"


class ManySizes(Recorded):
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
    message_text = (
        "{at.function} is recorded again for each of {graph.distinct} input sizes;"
        " {graph.replays} of {runs} were replays"
    )
    cause_text = "one CUDA graph is recorded per distinct input size, and kept"
    advice_text = (
        "pad the inputs to a few sizes, as `pad` and `buckets` of torchproof.graph do"
    )

    @classmethod
    def times(cls, graph: RecordingEvent) -> int:
        return graph.distinct if graph.distinct > _SOME_SIZES else 0

    def severity(self, group: RecordingGroup) -> Severity:
        graph = group.first
        if graph.distinct <= _MANY_SIZES:
            return "low"
        return "medium" if 2 * graph.replays >= graph.runs else "high"

    def setting(self, group: RecordingGroup) -> Setting | None:
        """No CUDA graph for this one, if recordings are most of what it does."""
        name = "inductor.triton.cudagraph_skip_dynamic_graphs"
        return Setting(name, True) if self.severity(group) == "high" else None

    def evidence(self, group: RecordingGroup) -> Iterable[str]:
        sizes = [
            " and ".join("x".join(map(str, shape)) or "scalar" for shape in size.shapes)
            for size in group.first.sizes
        ]
        more = f" and {len(sizes) - _SHOWN} more" if len(sizes) > _SHOWN else ""
        yield f"input sizes: {', '.join(sizes[:_SHOWN])}{more}"
        yield from super().evidence(group)


class MovedInput(Recorded):
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
    message_text = "{at.function} was recorded again {at.times}: {moved} moved"
    cause_text = (
        "a recording holds the addresses of parameters, and there is another one"
    )
    advice_text = (
        "write new values into {tensor} with copy_ under torch.no_grad(), instead of"
        " replacing the tensor"
    )

    @classmethod
    def times(cls, graph: RecordingEvent) -> int:
        return graph.again.get("moved", 0)

    def words(self, group: RecordingGroup) -> dict[str, object]:
        first, *others = group.first.moved or ("a static input",)
        moved = f"{first} and {len(others)} more" if others else first
        return {"tensor": first, "moved": moved}

    def evidence(self, group: RecordingGroup) -> Iterable[str]:
        for name, frames in list(group.first.uses.items())[:_SHOWN]:
            at = f", used at {frames[-1].file}:{frames[-1].line}" if frames else ""
            yield f"moved: {name}{at}"
        yield from super().evidence(group)


# Why a graph is recorded again, and what a person can do.
_AGAIN = {
    "inputs": (
        "an output of an earlier graph comes in at another address",
        "clone the output of the earlier graph before you pass it in",
    ),
    "liveness": (
        "other outputs of earlier graphs are still alive",
        "delete the outputs of each call at the same point of each step, and clone what"
        " you keep",
    ),
    "path": (
        "other graphs ran before it in the step",
        "call the compiled functions in the same order in each step",
    ),
}


class OtherRecording(Recorded):
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
    message_text = (
        "{at.function} was recorded again {at.times}: what ran before it differs from"
        " call to call"
    )

    @classmethod
    def times(cls, graph: RecordingEvent) -> int:
        count = sum(n for cause, n in graph.again.items() if cause != "moved")
        return count if count > _FEW_AGAIN else 0

    def cause(self, group: RecordingGroup) -> str:
        causes = [cause for cause in group.first.again if cause != "moved"]
        return "; ".join(_AGAIN[each][0] if each in _AGAIN else each for each in causes)

    def advice(self, group: RecordingGroup) -> str:
        again = {c: n for c, n in group.first.again.items() if c in _AGAIN}
        return _AGAIN[max(again, key=again.__getitem__, default="path")][1]
