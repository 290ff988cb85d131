"""Compares torch's messages without the parts that differ between programs."""

from __future__ import annotations

import builtins
import re

_PAGE = re.compile(r"/gb/(gb\d+)\.html")
_NESTED = "*** While handling this graph break, another graph break occurred: ***"
_COMPARED = 160  # characters of two messages that have to agree


def reason_of(text: str) -> dict:
    """Returns type, id and names of the reason in a message of Dynamo."""
    first = text.partition(_NESTED)[0]
    introduction = re.match(
        r"\s*(?:Encountered|Failed to handle) graph break.*?:\n\n", first, re.DOTALL
    )
    first = first[introduction.end() :] if introduction else first
    page = _PAGE.search(first)
    lines = [line.strip() for line in first.strip().splitlines()]
    explanation = re.search(r"Explanation: (.*?)(?=\s+Hint:|\n\n|\Z)", first, re.DOTALL)
    return {
        "type": lines[0] if lines else "unknown",
        "id": page[1].upper() if page else None,
        "names": names_in(explanation[1] if explanation else ""),
    }


def names_in(explanation: str) -> list[str]:
    """Returns the names of Python or torch that stand in backticks, sorted."""
    quoted = re.findall(r"`([A-Za-z_][\w.]*)`", explanation)
    return sorted({name for name in quoted if _is_public(name)})


def _is_public(name: str) -> bool:
    first = name.split(".")[0]
    return hasattr(builtins, name) or first in ("torch", "Tensor", "builtins", "math")


def is_same_reason(actual: dict, expected: dict) -> bool:
    """Compares two reasons by torch's id if both have one, else by their type."""
    if expected.get("id") and actual["id"]:
        same = actual["id"] == expected["id"]
    else:
        same = without_values(actual["type"]) == without_values(expected["type"])
    return same and (not expected.get("names") or actual["names"] == expected["names"])


def innermost(message: str) -> str:
    """Extracts `shape '[3, 3]' is invalid` from torch's "failed to run FX node ..."."""
    wrapped = re.search(r"got \w+\((['\"])(.+?)(?:\1\)|\Z)", message, re.DOTALL)
    if wrapped:
        return wrapped[2]
    message = re.sub(r"^\s*backend=.{1,80}? raised:\s*", "", message)
    first = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return re.split(r" Explanation: | Set TORCHDYNAMO_VERBOSE| from user code:", first)[
        0
    ]


def without_values(text: str) -> str:
    """Replaces paths, addresses, numbers and quoted names in a message."""
    text = re.sub(r"0x[0-9a-fA-F]+", "N", text)
    # The depth at which the stack ends differs from run to run.
    text = re.sub(r"(maximum recursion depth exceeded) .*", r"\1", text)
    text = re.sub(r"(?:[\w.~-]*/)+[\w.-]+", "PATH", text)
    text = re.sub(r"[LG]\['\w+'\]", "NAME", text)
    # Operators that the program defines: `shop::sell` and `shop.sell.default`.
    text = re.sub(r"\b(?!(?:aten|prims?|torch)::)\w+::\w+(?:\.\w+)?", "NAME", text)
    text = re.sub(r"\b(?!(?:aten|prims?)\.)\w+\.\w+\.default\b", "NAME", text)
    text = re.sub(r"(['\"`])(?:(?!\1).)*\1", _quoted, text)
    # A message that was cut off may end inside of a quoted name.
    text = re.sub(r"['\"`][\w.:]*$", "", text)
    text = re.sub(r"\b[su]\d+\b", "N", text)
    text = re.sub(r"-?\b\d[\d_.]*(?:e[-+]?\d+)?\b", "N", text)
    text = re.sub(r"N(?:\s*[,x*]\s*N)+", "N", text)
    return " ".join(text.split()).rstrip(". ")


def _quoted(match: re.Match) -> str:
    """Keeps names of torch, replaces shapes and names of the program."""
    inner = match[0][1:-1]
    return match[0] if re.fullmatch(r"(?:torch|aten)[\w.:]*", inner) else "NAME"


def is_same_message(actual: str, expected: str) -> bool:
    """Whether two messages describe one error.

    The expected one is in one line; it may contain later lines, and it may be cut off.
    """
    mine, other = (without_values(innermost(text)) for text in (actual, expected))
    length = min(len(mine), len(other), _COMPARED)
    return mine[:length] == other[:length] if length else mine == other


# Kinds of guards, by torch's description of a failed one. The first match counts.
_GUARDS = (
    (r"\.size\(\)\[\d+\] == [\w.\[\]'\"]+\.size\(\)\[\d+\]$", "equal sizes"),
    (r" size mismatch .*(?:expected|actual) [01]\b", "size 0 or 1"),
    (r"^2 <= [^<]+$|\.size\(\)\[\d+\] == [01]$", "size 0 or 1"),
    (r"tensor '.*?' ([\w ]+?) mismatch", None),
    (r"expected type of |___check_type_id|\bis (?:not )?None\b", "type"),
    (r"'NoneType' object has no attribute", "type"),
    (r"___check_obj_id|got deallocated|invalidated", "object"),
    (r"Duplicate tensor|^\S+ is (?:not )?\S+$", "alias"),
    (r"GLOBAL_STATE changed: ([\w ]+)", None),
    (r"function_mode_stack|___check_global_state", "global state"),
    (r"BACKEND_MATCH", "backend"),
    (r"^len\(|^not [\w.\[\]'\"]+$", "length"),
    (r"___dict_contains|^list\(", "keys"),
    (r"\.stride\(\)\[", "stride"),
    (r"\.size\(\)\[", "condition on a size"),
    (r"\.training == ", "training"),
    (r" == ", "value"),
)


def kind_of_guard(reason: str) -> str:
    """Returns the kind of a guard: `size` for "tensor 'x' size mismatch at index 0"."""
    guard = reason.split("\nUser stack trace:")[0].strip()
    guard = re.sub(r"^\[?(?:!\d+/)?\d+/\d+(?:_\d+)?\]?: ", "", guard)
    condition = re.split(r"\s+# ", guard)[0].strip()
    for pattern, kind in _GUARDS:
        match = re.search(pattern, condition)
        if match:
            return kind or without_values(match[1]).strip()
    return "other"
