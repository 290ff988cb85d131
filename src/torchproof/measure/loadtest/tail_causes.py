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
_PACK = "serve from a pack (torchproof pack TARGET --for deploy)"
_GENERATED = re.compile(r"/torchproof-\w+/inductor/")  # in the caches of a strategy


class Cause(Enum):
    """What delays requests; the value is the code, and the remedy in general."""

    RECOMPILE = "LT101", ""
    FIRST_COMPILE = (
        "LT102",
        f"{_WARM_UP}; {_PACK}; or answer eagerly meanwhile:"
        " torchproof.compile(model, wait=False)",
    )
    GARBAGE_COLLECTION = (
        "LT103",
        "call gc.collect() and gc.freeze() after warm-up, so that collections skip what"
        " stays",
    )
    RECORDING = "LT104", _WARM_UP
    FALLBACK = (
        "LT106",
        "fix the reason, which torchproof.status(model) shows in full; of a deadline,"
        f" raise deadline_s, answer eagerly meanwhile with wait=False, or {_PACK}",
    )
    ALLOCATOR = (
        "LT107",
        "leave more memory free, or set"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; answer the largest call"
        " first",
    )
    KERNEL = "LT109", f"{_WARM_UP}, or {_PACK}"
    BACKGROUND = (
        "LT110",
        f"{_PACK}, so that nothing is compiled while requests arrive",
    )
    CPU_WAIT = (
        "LT111",
        "leave CPUs to the serving process: fewer workers, fewer threads"
        " (OMP_NUM_THREADS), and no other programs beside it",
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
            sizes = [int(value) for value in values if value.isdigit()]
            pad = f"pad size {dim} of {source} to {max(sizes)}" if sizes else "pad"
            remedy = (
                f"{pad}, or to a few sizes; or mark it dynamic before the first call:"
                f" torch._dynamo.maybe_mark_dynamic({source}, {dim})"
            )
        case "size_one":
            remedy = (
                f"answer one call with size {dim} of {source} = 1 and one with a larger"
                " size before serving, or pad size 1 to 2"
            )
        case "equal_sizes" | "shape_condition":
            remedy = f"pad {source} to a few sizes, and {_WARM_UP}"
        case _:
            same = f"keep {source} the same in all requests"
            remedy = f"{same}, or {_WARM_UP} for each of its values"
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
        return text, (
            f"pad the inputs to a few sizes (`pad` of torchproof.graph), and {_WARM_UP}"
        )
    if not again:
        return text, _WARM_UP
    return text, (
        "keep parameters and outputs at the same addresses: write into them with"
        " copy_, and clone what outlives a request"
    )
