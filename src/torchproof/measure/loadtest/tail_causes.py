"""Groups stalls by what caused them, and says what to do about each cause.

The codes are those of the LT rules, whose pages explain them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from enum import Enum
from typing import NamedTuple

from torchproof.records import Stall, shown_briefly

_WARM_UP = "answer each call of the target once before serving"
_EACH_SIZE = "pad the inputs to a few sizes, and answer a call of each before serving"
_SAME_ADDRESS = (
    "write into parameters with copy_, and clone outputs that outlive a request: their"
    " addresses must stay"
)
_GENERATED = re.compile(r"/torchproof-\w+/inductor/")  # in the caches of a strategy


class Cause(Enum):
    """What delays requests; the value is the code, and the remedy in general."""

    RECOMPILE = "LT101", ""
    FIRST_COMPILE = "LT102", _WARM_UP
    GARBAGE_COLLECTION = (
        "LT103",
        "call gc.collect() and gc.freeze() after warm-up, so that collections skip what"
        " stays",
    )
    RECORDING = "LT104", _WARM_UP
    FALLBACK = (
        "LT106",
        "answer eagerly while it compiles: torchproof.compile(model, wait=False)",
    )
    ALLOCATOR = (
        "LT107",
        "serve smaller batches, so that the largest call leaves memory free",
    )
    KERNEL = "LT109", _WARM_UP
    BACKGROUND = (
        "LT110",
        "serve from a pack, which compiles nothing (torchproof pack TARGET --for"
        " deploy)",
    )
    CPU_WAIT = (
        "LT111",
        "keep workers times OMP_NUM_THREADS at most the number of CPUs",
    )

    @property
    def code(self) -> str:
        return self.value[0]


_BY_KIND = {
    "inductor": Cause.KERNEL,
    "triton": Cause.KERNEL,
    "cache_miss": Cause.KERNEL,
    "fallback": Cause.FALLBACK,
    "allocator": Cause.ALLOCATOR,
    "cpu": Cause.CPU_WAIT,
}
_PLACED = {Cause.RECOMPILE, Cause.GARBAGE_COLLECTION}


class CauseKey(NamedTuple):
    """Stalls with the same key have the same cause."""

    cause: Cause
    subject: Hashable = ()


def key_of(stall: Stall) -> CauseKey:
    data = stall.data
    match stall.kind:
        case "compile" | "inductor" | "triton" if data.get("background"):
            return CauseKey(Cause.BACKGROUND)
        case "compile" if "guard" in data:
            guard = data["guard"]
            what = (guard["cause"], guard["source"], guard["dim"])
            return CauseKey(Cause.RECOMPILE, (stall.file, stall.function, what))
        case "compile":
            return CauseKey(Cause.FIRST_COMPILE)
        case "cudagraph":
            return CauseKey(Cause.RECORDING, bool(data.get("again")))
        case "gc":
            return CauseKey(Cause.GARBAGE_COLLECTION, data.get("generation"))
    return CauseKey(_BY_KIND[stall.kind], stall.text)


def describe(key: CauseKey, stalls: Sequence[Stall]) -> tuple[str, str]:
    """What happened, in one line with the place if there is one, and the remedy."""
    first = stalls[0]
    text, remedy = first.text, key.cause.value[1]
    match key.cause:
        case Cause.RECOMPILE:
            text, remedy = _recompile(stalls)
        case Cause.FIRST_COMPILE:
            names = dict.fromkeys(each.function or "the model" for each in stalls)
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            text = f"first compilation of {next(iter(names))}{more}"
        case Cause.RECORDING:
            text, remedy = _recording(stalls)
        case Cause.BACKGROUND:
            text = "requests were served beside a compilation in the background"
    placed = [each for each in stalls if key.cause in _PLACED and each.file]
    if not placed:
        return text, remedy
    # The finding is at the longest stall as well.
    longest = max(placed, key=lambda each: each.end_s - each.begin_s)
    file = longest.file or ""
    if _GENERATED.search(file):
        return f"{text} (in compiled code)", remedy
    return f"{text} ({shown_briefly(file)}:{longest.line})", remedy


def _recompile(stalls: Sequence[Stall]) -> tuple[str, str]:
    """With all values that were seen: `size 1 of x was 512, 576, 640`."""
    guards = [each.data["guard"] for each in stalls]
    seen = [guard[end] for guard in guards for end in ("expected", "actual")]
    values = list(dict.fromkeys(value for value in seen if value is not None))
    cause, source, dim = (guards[0][name] for name in ("cause", "source", "dim"))
    compiled, changes = guards[0]["compiled"], guards[0]["changed"]
    if values:
        size = f"size {dim} of " if dim is not None else ""
        listed = [*values[:6], *(["..."] if len(values) > 6 else [])]
        changes = f"{size}{source} was {', '.join(listed)}"
    match cause:
        case "size":
            mark = f"torch._dynamo.maybe_mark_dynamic({source}, {dim})"
            remedy = f"before the first call: {mark}"
        case "size_one":
            remedy = (
                f"answer one call with size {dim} of {source} = 1 and one with a larger"
                " size before serving"
            )
        case "equal_sizes" | "shape_condition":
            remedy = _EACH_SIZE
        case _:
            remedy = f"answer a call with each value of {source} before serving"
    return f"recompile of {compiled}: {changes}", remedy


def _recording(stalls: Sequence[Stall]) -> tuple[str, str]:
    shapes = [" and ".join(each.data.get("shapes", ())) for each in stalls]
    sizes = list(dict.fromkeys(filter(None, shapes)))
    text, again = stalls[0].text, stalls[0].data.get("again")
    if sizes:
        listed = ", ".join(sizes[:4]) + (", ..." if len(sizes) > 4 else "")
        text = f"CUDA graph recorded{' again' if again else ''} for {listed}"
    if reasons := stalls[0].data.get("reasons"):
        text = f"{text}: {reasons[0]}"
    if any(each.data.get("new_shapes") for each in stalls):
        return text, _EACH_SIZE
    return text, _SAME_ADDRESS if again else _WARM_UP
