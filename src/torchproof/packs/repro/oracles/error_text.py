"""What torch says of a failure, less what differs from one program to the next."""

from __future__ import annotations

import builtins
import re

_PAGE = re.compile(r"/gb/(gb\d+)\.html")
_NESTED = "*** While handling this graph break, another graph break occurred: ***"
_LONGEST = 160  # of two messages, as much as is compared


def reason_of(text: str) -> dict:
    """The part of a message of Dynamo's that gives its own reason: type, id, names."""
    first = text.partition(_NESTED)[0]
    introduced = re.match(
        r"\s*(?:Encountered|Failed to handle) graph break.*?:\n\n", first, re.DOTALL
    )
    first = first[introduced.end() :] if introduced else first
    page = _PAGE.search(first)
    lines = [line.strip() for line in first.strip().splitlines()]
    told = re.search(r"Explanation: (.*?)(?=\s+Hint:|\n\n|\Z)", first, re.DOTALL)
    return {
        "type": lines[0] if lines else "unknown",
        "id": page[1].upper() if page else None,
        "names": names_in(told[1] if told else ""),
    }


def names_in(explanation: str) -> list[str]:
    """What of Python's or torch's own a message names in backticks, sorted."""
    named = re.findall(r"`([A-Za-z_][\w.]*)`", explanation)
    return sorted({name for name in named if _is_public(name)})


def _is_public(name: str) -> bool:
    first = name.split(".")[0]
    return hasattr(builtins, name) or first in ("torch", "Tensor", "builtins", "math")


def is_same_reason(seen: dict, expected: dict) -> bool:
    """Whether two reasons are one, by torch's own id where there is one."""
    if expected.get("id") and seen["id"]:
        same = seen["id"] == expected["id"]
    else:
        same = without_values(seen["type"]) == without_values(expected["type"])
    return same and (not expected.get("names") or seen["names"] == expected["names"])


def innermost(message: str) -> str:
    """`shape '[3, 3]' is invalid` out of torch's "failed to run FX node ..."."""
    told = re.search(r"got \w+\((['\"])(.+?)(?:\1\)|\Z)", message, re.DOTALL)
    if told:
        return told[2]
    message = re.sub(r"^\s*backend=.{1,80}? raised:\s*", "", message)
    first = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return re.split(r" Explanation: | Set TORCHDYNAMO_VERBOSE| from user code:", first)[
        0
    ]


def without_values(text: str) -> str:
    """A message without its paths, addresses, numbers and quoted names."""
    text = re.sub(r"0x[0-9a-fA-F]+", "N", text)
    # Where the stack ends is chance.
    text = re.sub(r"(maximum recursion depth exceeded) .*", r"\1", text)
    text = re.sub(r"(?:[\w.~-]*/)+[\w.-]+", "PATH", text)
    text = re.sub(r"[LG]\['\w+'\]", "NAME", text)
    text = re.sub(r"(['\"`])(?:(?!\1).)*\1", _quoted, text)
    text = re.sub(r"\b[su]\d+\b", "N", text)
    text = re.sub(r"-?\b\d[\d_.]*(?:e[-+]?\d+)?\b", "N", text)
    text = re.sub(r"N(?:\s*[,x*]\s*N)+", "N", text)
    return " ".join(text.split()).rstrip(". ")


def _quoted(match: re.Match) -> str:
    """What is torch's own stays; a shape or a name of somebody's does not."""
    inner = match[0][1:-1]
    return match[0] if re.fullmatch(r"(?:torch|aten)[\w.:]*", inner) else "NAME"


def is_same_message(seen: str, expected: str) -> bool:
    """Whether two messages tell of one error; the expected one is in one line.

    It may hold more lines than the first, and it may be cut off.
    """
    mine, other = (without_values(innermost(text)) for text in (seen, expected))
    length = min(len(mine), len(other), _LONGEST)
    return mine[:length] == other[:length] if length else mine == other


# What a failed guard was about, by what torch writes of it. The first that fits.
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
    """What it is about: `size` of "tensor 'x' size mismatch at index 0. ..."."""
    told = reason.split("\nUser stack trace:")[0].strip()
    told = re.sub(r"^\[?(?:!\d+/)?\d+/\d+(?:_\d+)?\]?: ", "", told)
    condition = re.split(r"\s+# ", told)[0].strip()
    for pattern, kind in _GUARDS:
        found = re.search(pattern, condition)
        if found:
            return kind or without_values(found[1]).strip()
    return "other"
