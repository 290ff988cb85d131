"""Parses torch's message for a failed guard: what changed, and from which value.

Takes one reason of a `recompile_reasons` record. Returns a `Guard` with the cause, the
source expression as the user wrote it, and the expected and actual values.
"""

from __future__ import annotations

import re
from dataclasses import replace

from torchproof.records.guards import Guard, GuardCause, readable_source

_ID = re.compile(r"^\[?(?:!\d+/)?(?P<id>\d+/\d+(?:_\d+)?)\]?: ")
_COMMENT = re.compile(
    r"\s{2,}# (?P<code>.*?)  # (?P<file>\S+):(?P<line>\d+) in (?P<function>\S+)"
)
_CELL = re.compile(r"\(HINT: guard on \"(?P<name>\w+)\"\)")
_SIZE = re.compile(r"(?P<tensor>[A-Za-z_][\w.\[\]'\"]*?)\.size\(\)\[(?P<dim>\d+)\]")
_STRIDE = re.compile(r"\.stride\(\)\[(?P<dim>\d+)\]")


def parse(reason: str) -> Guard:
    """Parses a reason such as "0/1: tensor 'x' size mismatch at index 0. ..."."""
    sentence = reason.split("\nUser stack trace:")[0].strip()
    number = _ID.match(sentence)
    text = sentence[number.end() :] if number else sentence
    comment = _COMMENT.search(text)
    condition = text[: comment.start()] if comment else text.split("  # ")[0]
    condition = condition.strip()
    guard = _tensor(condition, text) or _listed(condition, text)
    guard = guard or _shape(condition, text) or _value(condition, text)
    guard = replace(guard, graph=number["id"] if number else "")
    if cell := _CELL.search(text):
        guard = replace(guard, source=cell["name"], cause="value", other="closure")
    if comment:
        guard = replace(
            guard,
            code=comment["code"].strip(),
            file=comment["file"],
            line=int(comment["line"]),
        )
    return guard


# What torch says of a tensor that does not match.
_OF_TENSORS: dict[str, GuardCause] = {
    "size": "size",
    "stride": "stride",
    "rank": "rank",
    "dtype": "dtype",
    "requires_grad": "requires_grad",
    "dispatch key set": "dispatch_key",
}


def _tensor(condition: str, text: str) -> Guard | None:
    """Parses `tensor 'x' size mismatch at index 0. expected 8, actual 5`."""
    match = re.match(
        r"tensor '(?P<name>.+?)' (?P<what>[\w ]+?) mismatch(?: at index"
        r" (?P<dim>\d+))?\. "
        r"expected (?P<expected>.+?)(?:, actual (?P<actual>.+?))?"
        # Advice of torch's that follows the sizes of a parameter.
        r"(?:\. Guard failed on a parameter, .*)?$",
        condition,
    )
    if match is None:
        return None
    dim = int(match["dim"]) if match["dim"] else None
    expected, actual = match["expected"], match["actual"]
    cause = _OF_TENSORS.get(match["what"], "other")
    if cause == "size" and {expected, actual} & {"0", "1"}:
        cause = "size_one"
    if cause == "requires_grad":
        expected = "True" if expected.endswith("1") else "False"
        actual = "False" if expected == "True" else "True"
    if cause == "dispatch_key":
        cause, expected, actual = _dispatch_keys(expected, actual or "")
    return Guard(
        cause=cause,
        source=readable_source(match["name"]),
        text=text,
        dim=dim,
        expected=expected,
        actual=actual,
    )


# A layout or a kind of tensor, before the device in the name of a backend key.
_LAYOUT = (
    r"^(SparseCsr|Sparse|Quantized|Mkldnn|BatchedNestedTensor|NestedTensor)(?=[A-Z])"
)


def _dispatch_keys(expected: str, actual: str) -> tuple[GuardCause, str, str]:
    """The backend key shows a changed device; other keys are subclasses or modes."""
    before, after = (re.findall(r"\w+", keys)[1:2] for keys in (expected, actual))
    devices = [re.sub(_LAYOUT, "", key) for key in (*before, *after)]
    if len(set(devices)) == 2:
        return "device", before[0], after[0]
    return "dispatch_key", expected, actual


_NONE = {"expected": "None", "actual": "something else"}
_NOT_NONE = {"expected": "something", "actual": "None"}
_FREED = {"source": "an object", "other": "object"}

# Torch's messages with the cause that they mean. The groups of a pattern are fields of
# the guard, in addition to those that follow; `kind` is the class of an object. The
# first pattern that matches counts.
_PATTERNS: tuple[tuple[str, GuardCause, dict[str, str]], ...] = (
    (
        r"expected type of '(?P<source>.+?)' to be (?:a tensor type, '|<class '.+?'>,)"
        r" but found <class '(?P<actual>.+?)'>",
        "type",
        {"expected": "Tensor"},
    ),
    (r"(?P<source>.+?) is None$", "type", _NONE),
    (r"(?P<source>.+?) is not None$", "type", _NOT_NONE),
    (
        r"___check_type_id\((?P<source>.+?), \d+\)(?:, type=(?P<kind>.+))?$",
        "type",
        {"actual": "another type"},
    ),
    # Torch evaluated old shape guards on None in place of a tensor.
    (
        r"'NoneType' object has no attribute '(?:size|stride|storage_offset)'$",
        "type",
        {"source": "an input", "expected": "Tensor", "actual": "None"},
    ),
    (
        r"___check_obj_id\((?P<source>.+?)\.__code__, \d+\)(?:, type=.+)?$",
        "identity",
        {"other": "function"},
    ),
    (
        r"___check_obj_id\((?P<source>.+?), \d+\)(?:, type=(?P<kind>.+))?$",
        "identity",
        {},
    ),
    (
        r"(?s)(?=.*(?:got deallocated|(?i:invalidated)))"
        r"(?:.*?(?:\((?P<source>[^)]*)\)|because (?P<bare>\S+)))?",
        "identity",
        _FREED,
    ),
    (
        r'Duplicate tensor(?:[^"]*"(?P<source>.+?)"(?:.*"(?P<other>.+?)")?)?',
        "alias",
        {"source": "two inputs"},
    ),
    (r"(?P<source>\S+) is (?:not )?(?P<other>\S+)$", "alias", {}),
    (r"GLOBAL_STATE changed: (?P<source>.+)$", "global_state", {}),
    (
        r".*torch_function_mode_stack",
        "global_state",
        {"source": "torch function modes (default device)"},
    ),
    (r".*___check_global_state", "global_state", {"source": "global torch state"}),
    (r"BACKEND_MATCH", "backend", {"source": "backend"}),
    (r"len\((?P<source>.+)\) (?:==|!=) (?P<expected>\d+)$", "length", {}),
    (r"not (?P<source>[\w.\[\]'\"]+)$", "length", {"expected": "0"}),
    (
        r"list\((?:dict\.keys|[\w.]+)\((?P<source>.+?)\)\)(?:\[\d+\])?"
        r" == (?P<expected>.+)$",
        "keys",
        {},
    ),
    (r"KeyError on (?P<source>.+)\[(?P<expected>[^\[\]]+)\]$", "keys", {}),
    (r"(?:not )?___dict_contains\((?P<expected>.+?), (?P<source>.+)\)$", "keys", {}),
)


def _listed(condition: str, text: str) -> Guard | None:
    for pattern, cause, more in _PATTERNS:
        if match := re.match(pattern, condition):
            found = {k: v for k, v in match.groupdict().items() if v is not None}
            return _guard(cause, more | found, text)
    return None


def _guard(cause: GuardCause, found: dict[str, str], text: str) -> Guard:
    source = readable_source(found.get("bare") or found["source"])
    kind = _class(found.get("kind", ""))
    other = found.get("other", kind if cause == "identity" else "")
    expected = found.get("expected", kind if cause == "type" else None)
    actual = found.get("actual")
    if cause == "alias":
        other = readable_source(other or source)
    return Guard(
        cause=cause,
        source=source,
        text=text,
        expected=expected,
        actual=_class(actual) if actual else None,
        other=other,
    )


def _shape(condition: str, text: str) -> Guard | None:
    sizes = list(_SIZE.finditer(condition))
    if not sizes:
        if stride := _STRIDE.search(condition):
            source = readable_source(condition[: stride.start()].split()[-1])
            return Guard(
                cause="stride", source=source, text=text, dim=int(stride["dim"])
            )
        return None
    source, dim = readable_source(sizes[0]["tensor"]), int(sizes[0]["dim"])
    if "duck sizing" in text and len(sizes) > 1:
        other = f"{readable_source(sizes[1]['tensor'])}.size({sizes[1]['dim']})"
        size = re.search(r"same size (\d+)", text)
        return Guard(
            cause="equal_sizes",
            source=source,
            text=text,
            dim=dim,
            expected=size[1] if size else None,
            other=other,
        )
    # A guard that also has an upper bound comes from a condition in the code.
    bounded = condition.count("<=") > 1
    if not bounded and ("0/1 specialization" in text or condition.startswith("2 <= ")):
        return Guard(
            cause="size_one",
            source=source,
            text=text,
            dim=dim,
            expected=">= 2",
            actual="0 or 1",
        )
    exact = re.match(r"\S+\.size\(\)\[\d+\] == (\d+)$", condition)
    if exact:
        is_one = exact[1] in {"0", "1"}
        cause: GuardCause = "size_one" if is_one else "size"
        return Guard(cause=cause, source=source, text=text, dim=dim, expected=exact[1])
    return Guard(
        cause="shape_condition",
        source=source,
        text=text,
        dim=dim,
        other=_readable(condition),
    )


def _value(condition: str, text: str) -> Guard:
    match = re.match(r"(?P<name>.+?) == (?P<value>.+)$", condition)
    if match is None:
        return Guard(cause="other", source=_readable(condition), text=text)
    return Guard(
        cause=_scalar_cause(match["name"]),
        source=readable_source(match["name"]),
        text=text,
        expected=match["value"],
    )


def _scalar_cause(name: str) -> GuardCause:
    """The cause of a changed value, by the kind of variable that has it."""
    if "param_groups" in name and re.search(r"\['\w*lr'\]", name):
        return "learning_rate"
    if name.endswith(".training"):
        return "training"
    if name.startswith("G["):
        return "global"
    if (
        re.search(r"\.\w+$", name)
        and "__closure__" not in name
        and "cell_contents" not in name
    ):
        return "attribute"
    return "value"


def _readable(condition: str) -> str:
    return readable_source(
        _SIZE.sub(lambda m: f"{m['tensor']}.size({m['dim']})", condition)
    )


def _class(text: str) -> str:
    """The last name of `<class 'torch.nn.parameter.Parameter'>`: `Parameter`."""
    if value := re.fullmatch(r"<([\w.]+): .+>", text):  # `<Mode.FAST: 1>` of an enum
        return value[1]
    return re.sub(r"<class '(.+)'>", r"\1", text).rsplit(".", 1)[-1]
