"""Groups stalls by what caused them, and says what to do about each cause.

The codes are those of the LT rules, whose pages explain them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from torchproof.records import Stall, shown_briefly

RECOMPILE = "LT101"
FIRST_COMPILE = "LT102"
GARBAGE_COLLECTION = "LT103"
RECORDING = "LT104"
HELD_GIL = "LT105"
FALLBACK = "LT106"
ALLOCATOR = "LT107"
PLAIN_LOAD = "LT108"
KERNEL = "LT109"
BACKGROUND = "LT110"
CPU_WAIT = "LT111"

_WARM_UP = "answer each call of the target once before serving"
_PACK = "serve from a pack (torchproof pack TARGET --for deploy)"


class CauseKey(NamedTuple):
    """Stalls with the same key have the same cause."""

    code: str
    subject: Hashable


def key_of(stall: Stall) -> CauseKey:
    data = stall.data
    match stall.kind:
        case "compile" | "inductor" | "triton" if data.get("background"):
            return CauseKey(BACKGROUND, ())
        case "compile" if "guard" in data:
            guard = data["guard"]
            what = (guard["cause"], guard["source"], guard["dim"])
            return CauseKey(RECOMPILE, (stall.file, stall.function, what))
        case "compile":
            return CauseKey(FIRST_COMPILE, ())
        case "inductor" | "triton" | "cache_miss":
            return CauseKey(KERNEL, stall.text)
        case "cudagraph":
            return CauseKey(RECORDING, bool(data.get("again")))
        case "gc":
            return CauseKey(GARBAGE_COLLECTION, data.get("generation"))
        case "gil":
            return CauseKey(HELD_GIL, (stall.thread, stall.file, stall.line))
        case "fallback":
            return CauseKey(FALLBACK, stall.text)
        case "allocator":
            return CauseKey(ALLOCATOR, ())
        case "cpu":
            return CauseKey(CPU_WAIT, ())
        case "prefill":
            raise ValueError("only older runs have it, which are not explained again")


def text_of(key: CauseKey, stalls: Sequence[Stall]) -> str:
    """What happened, in one line, with the place if there is one."""
    first = stalls[0]
    text = first.text
    match key.code:
        case "LT101":
            before, _, _ = first.text.partition(": ")
            text = f"{before}: {_changes(stalls)}"
        case "LT102":
            names = dict.fromkeys(each.function or "the model" for each in stalls)
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            text = f"first compilation of {next(iter(names))}{more}"
        case "LT104":
            text = _recordings(stalls)
        case "LT110":
            text = "requests were served beside a compilation in the background"
    placed = [each for each in stalls if key.code in _PLACED and each.file]
    if not placed:
        return text
    # The finding is at the longest stall as well.
    longest = max(placed, key=lambda each: each.end_s - each.begin_s)
    file = longest.file or ""
    if _GENERATED.search(file):
        return f"{text} (in compiled code)"
    return f"{text} ({shown_briefly(file)}:{longest.line})"


_PLACED = {RECOMPILE, HELD_GIL, GARBAGE_COLLECTION}
_GENERATED = re.compile(r"/torchproof-\w+/inductor/")  # in the caches of a strategy


def _changes(stalls: Sequence[Stall]) -> str:
    """What changed, with all values that were seen: `size 1 of x was 512, 576, 640`."""
    guard = stalls[0].data["guard"]
    values = _values(stalls)
    if not values:
        return stalls[0].text.partition(": ")[2]
    size = f"size {guard['dim']} of " if guard["dim"] is not None else ""
    shown = [*values[:6], *(["..."] if len(values) > 6 else [])]
    return f"{size}{guard['source']} was {', '.join(shown)}"


def _values(stalls: Sequence[Stall]) -> list[str]:
    guards = [each.data["guard"] for each in stalls]
    values = [guard[end] for guard in guards for end in ("expected", "actual")]
    return list(dict.fromkeys(value for value in values if value is not None))


def _recordings(stalls: Sequence[Stall]) -> str:
    shapes = [" and ".join(each.data.get("shapes", ())) for each in stalls]
    sizes = list(dict.fromkeys(filter(None, shapes)))
    shown = ", ".join(sizes[:4]) + (", ..." if len(sizes) > 4 else "")
    again = " again" if stalls[0].data.get("again") else ""
    text = f"CUDA graph recorded{again} for {shown}" if shown else stalls[0].text
    reasons = stalls[0].data.get("reasons") or ()
    return f"{text}: {reasons[0]}" if reasons else text


# -- remedies --------------------------------------------------------------------------


def remedy_of(key: CauseKey, stalls: Sequence[Stall]) -> str:
    return _REMEDIES[key.code](stalls)


def _recompile_remedy(stalls: Sequence[Stall]) -> str:
    guard = stalls[0].data["guard"]
    source, dim = guard["source"], guard["dim"]
    if guard["cause"] == "size":
        sizes = [int(value) for value in _values(stalls) if value.isdigit()]
        pad = f"pad size {dim} of {source} to {max(sizes)}" if sizes else "pad"
        return (
            f"{pad}, or to a few sizes; or mark it dynamic before the first call:"
            f" torch._dynamo.maybe_mark_dynamic({source}, {dim})"
        )
    if guard["cause"] == "size_one":
        return (
            f"answer one call with size {dim} of {source} = 1 and one with a larger"
            " size before serving, or pad size 1 to 2"
        )
    if guard["cause"] in {"equal_sizes", "shape_condition"}:
        return f"pad {source} to a few sizes, and {_WARM_UP}"
    return (
        f"keep {source} the same in all requests, or {_WARM_UP} for each of its values"
    )


def _recording_remedy(stalls: Sequence[Stall]) -> str:
    if any(each.data.get("new_shapes") for each in stalls):
        return (
            f"pad the inputs to a few sizes (`pad` of torchproof.graph), and {_WARM_UP}"
        )
    if stalls[0].data.get("again"):
        return (
            "keep parameters and outputs at the same addresses: write into them with"
            " copy_, and clone what outlives a request"
        )
    return _WARM_UP


def _gil_remedy(stalls: Sequence[Stall]) -> str:
    thread = stalls[0].thread or "that holds the GIL"
    return (
        f"move the work of thread {thread} to another process, or release the GIL there"
    )


_REMEDIES: dict[str, Callable[[Sequence[Stall]], str]] = {
    RECOMPILE: _recompile_remedy,
    FIRST_COMPILE: lambda _: (
        f"{_WARM_UP}; {_PACK}; or answer eagerly meanwhile:"
        " torchproof.compile(model, wait=False)"
    ),
    GARBAGE_COLLECTION: lambda _: (
        "call gc.collect() and gc.freeze() after warm-up, so that collections skip what"
        " stays"
    ),
    RECORDING: _recording_remedy,
    HELD_GIL: _gil_remedy,
    FALLBACK: lambda _: (
        "fix the reason, which torchproof.status(model) shows in full; of a deadline,"
        f" raise deadline_s, answer eagerly meanwhile with wait=False, or {_PACK}"
    ),
    ALLOCATOR: lambda _: (
        "leave more memory free, or set"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; answer the largest call"
        " first"
    ),
    KERNEL: lambda _: f"{_WARM_UP}, or {_PACK}",
    CPU_WAIT: lambda _: (
        "leave CPUs to the serving process: fewer workers, fewer threads"
        " (OMP_NUM_THREADS), and no other programs beside it"
    ),
    BACKGROUND: lambda _: f"{_PACK}, so that nothing is compiled while requests arrive",
}
