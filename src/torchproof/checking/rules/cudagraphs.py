"""CG311 to CG319: graphs that torch does not capture in a CUDA graph.

Takes the events with torch's reason for each skipped graph and the line that torch
blames. Each rule stands for one kind of reason.
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
    Match,
    Rule,
    event_place,
    grouped,
    plural,
    shorten,
)
from torchproof.checking.static.flow import Flow
from torchproof.records import CaptureEvent, GraphSkipEvent, Place, Status, Symptom

_UNNAMED = re.compile(r"\d+|0x[0-9a-f]+")
_OPERATION = re.compile(r"incompatible op \(?([\w.]+)\)?|operator: ([\w.]+\w)")


_MADE = {"tensor", "arange", "zeros", "ones", "full", "linspace", "eye"}


SkipGroup = EventGroup[GraphSkipEvent]


class Skip(Rule[SkipGroup]):
    """Base class of the rules for graphs that run without CUDA graphs."""

    kind = "cudagraph_skip"
    parts = ("lifetimes",)
    reference = torch_pages.CUDAGRAPHS
    placed = True
    reasons: ClassVar[tuple[str, ...]] = ()  # torch's words for this reason

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

    def evidence(self, group: SkipGroup) -> Iterable[str]:
        yield f"torch says: skipping cudagraphs due to {group.first.reason}"
        yield from dict.fromkeys(_often(group.events))

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


def _often(events: Iterable[GraphSkipEvent]) -> Iterator[str]:
    for event in events:
        if event.ungraphed and event.runs:
            yield f"{event.ungraphed} of {plural(event.runs, 'run')} used no CUDA graph"


def _at(group: SkipGroup) -> str:
    return f"`{group.expression}`" if group.expression else group.function


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
    message_text = (
        "{at.what} changes an input of the graph in place: torch does not capture the"
        " graph"
    )
    cause_text = (
        "the input is neither a parameter, a buffer nor marked as static, so a replay"
        " would change a copy of it"
    )
    advice_text = (
        "make the tensor a buffer of the module (register_buffer), or mark it once with"
        " torch._dynamo.mark_static_address(tensor), or return the new value instead of"
        " writing to the input"
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
    advice_text = (
        "create the tensor on the GPU (device=x.device), or move it there once before"
        " the first call; a plain Python number needs no device"
    )
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
    cause_text = "a CUDA graph is recorded on one device"
    advice_text = "compile the part on each device separately, or use only one device"

    def message(self, group: SkipGroup) -> str:
        devices = group.first.reason.partition("multiple devices: ")[2]
        which = f" ({devices})" if devices else ""
        return (
            f"{group.function} uses several devices{which}: torch does not capture it"
        )


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
    advice_text = (
        "compute with tensors of fixed shape (torch.where, masks instead of boolean"
        " indexing), or move the operation out of the compiled function"
    )

    def message(self, group: SkipGroup) -> str:
        return (
            f"{_at(group)} cannot be part of a CUDA graph{self._named(group)}: torch"
            " does not capture its graph"
        )

    def cause(self, group: SkipGroup) -> str:
        return f"torch says: {shorten(group.first.reason, 120)}"

    def _named(self, group: SkipGroup) -> str:
        match = _OPERATION.search(group.first.reason)
        return f" ({match[1] or match[2]})" if match else ""


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
        "keep it if the sizes vary widely; otherwise pad inputs to a few sizes, and"
        " capture those (torch._inductor.config.triton.cudagraph_capture_sizes)"
    )
    run_severity = "low"

    def cause(self, group: SkipGroup) -> str:
        return shorten(group.first.reason, 120)

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
        "call it under torch.no_grad() if no backward follows, detach the outputs that"
        " you keep, or call torch.compiler.cudagraph_mark_step_begin() before each step"
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
        "keep the inputs of the graph at the same addresses: write new values into the"
        " same tensors with copy_ instead of replacing the tensors"
    )

    def cause(self, group: SkipGroup) -> str:
        return shorten(group.first.reason.partition("due to ")[2], 160)


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

    def matches(self, group: SkipGroup) -> bool:
        return True

    def message(self, group: SkipGroup) -> str:
        why = shorten(group.first.reason, 80)
        return f"torch does not capture {group.function} in a CUDA graph: {why}"

    def cause(self, group: SkipGroup) -> str:
        return f"torch says: {shorten(group.first.reason, 160)}"

    def advice(self, group: SkipGroup) -> str:
        reason = group.first.reason
        if "overlap" in reason:
            return "pass tensors whose elements do not share memory: .contiguous()"
        if "cpp" in reason and "wrapper" in reason:
            return "to use CUDA graphs, switch off torch._inductor.config.cpp_wrapper"
        return "remove the reason that torch names, or do not use CUDA graphs here"
