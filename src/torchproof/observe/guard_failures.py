"""Reads the sentence torch gives for a failed guard: what changed, and from what.

In goes one reason of a `recompile_reasons` record; out comes a `Guard` that names the
cause, the source expression in the user's words, and the values seen.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

_ID = re.compile(r"^\[?(?:!\d+/)?(?P<id>\d+/\d+(?:_\d+)?)\]?: ")
_COMMENT = re.compile(
    r"\s{2,}# (?P<code>.*?)  # (?P<file>\S+):(?P<line>\d+) in (?P<function>\S+)"
)
_CELL = re.compile(r"\(HINT: guard on \"(?P<name>\w+)\"\)")
_SIZE = re.compile(r"(?P<tensor>[A-Za-z_][\w.\[\]'\"]*?)\.size\(\)\[(?P<dim>\d+)\]")
_STRIDE = re.compile(r"\.stride\(\)\[(?P<dim>\d+)\]")

# What a resumed function finds on its stack: it has no name in the user's code.
BEFORE_THE_BREAK = "the value computed just before the break"


@dataclass(frozen=True)
class Guard:
    """One failed guard: `source` is what it was about, `values` what it saw."""

    cause: str
    source: str
    text: str
    dim: int | None = None
    expected: str | None = None
    actual: str | None = None
    code: str = ""  # the user's line the guard came from, as torch quotes it
    file: str = ""  # the end of that line's path
    line: int | None = None
    other: str = ""  # the second tensor of an equality, the class of an object
    graph: str = ""  # whose guard it is, as torch numbers what it compiles: 0/1

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(v for v in (self.expected, self.actual) if v is not None)


def parse(reason: str) -> Guard:
    """A guard from one line such as "0/1: tensor 'x' size mismatch at index 0. ..."."""
    sentence = reason.split("\nUser stack trace:")[0].strip()
    number = _ID.match(sentence)
    text = sentence[number.end() :] if number else sentence
    comment = _COMMENT.search(text)
    condition = text[: comment.start()] if comment else text.split("  # ")[0]
    condition = condition.strip()
    guard = next(
        guard_read
        for read in _READERS
        if (guard_read := read(condition, text)) is not None
    )
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


def _tensor(condition: str, text: str) -> Guard | None:
    """`tensor 'x' size mismatch at index 0. expected 8, actual 5` and its siblings."""
    match = re.match(
        r"tensor '(?P<name>.+?)' (?P<what>[\w ]+?) mismatch(?: at index"
        r" (?P<dim>\d+))?\. "
        r"expected (?P<expected>.+?)(?:, actual (?P<actual>.+))?$",
        condition,
    )
    if match is None:
        return None
    dim = int(match["dim"]) if match["dim"] else None
    expected, actual = match["expected"], match["actual"]
    cause = match["what"].replace(" ", "_")
    if cause == "size" and {expected, actual} & {"0", "1"}:
        cause = "size_one"
    if cause == "requires_grad":
        expected = "True" if expected.endswith("1") else "False"
        actual = "False" if expected == "True" else "True"
    if cause == "dispatch_key_set":
        cause, expected, actual = _dispatch_keys(expected, actual or "")
    return Guard(cause, _source(match["name"]), text, dim, expected, actual)


def _dispatch_keys(expected: str, actual: str) -> tuple[str, str, str]:
    """A device shows as the backend key; other keys are subclasses or modes."""
    before, after = (re.findall(r"\w+", keys)[1:2] for keys in (expected, actual))
    if before != after and before and after:
        return "device", before[0], after[0]
    return "dispatch_key", expected, actual


def _type(condition: str, text: str) -> Guard | None:
    match = re.match(
        r"expected type of '(?P<name>.+?)' to be (?:a tensor type, '|<class '.+?'>,)"
        r" but found <class '(?P<type>.+?)'>",
        condition,
    )
    if match:
        return Guard(
            "type", _source(match["name"]), text, None, "Tensor", _class(match["type"])
        )
    match = re.match(r"(?P<name>.+?) is (?P<not>not )?None$", condition)
    if match:
        now = ("something", "None") if match["not"] else ("None", "something else")
        return Guard("type", _source(match["name"]), text, None, *now)
    match = re.match(
        r"___check_type_id\((?P<name>.+?), \d+\)(?:, type=(?P<type>.+))?$", condition
    )
    if match:
        kind, source = _class(match["type"] or ""), _source(match["name"])
        if hasattr(builtins, kind):
            return Guard("type", source, text, None, kind, "another type")
        return Guard("identity", source, text, other=f"object, of a class {kind}")
    if condition == "'NoneType' object has no attribute 'size'":
        # Evaluating the old shape guards met None where a tensor had been.
        return Guard("type", "an input", text, None, "Tensor", "None")
    return None


def _identity(condition: str, text: str) -> Guard | None:
    match = re.match(
        r"___check_obj_id\((?P<name>.+?), \d+\)(?:, type=(?P<type>.+))?$", condition
    )
    if match:
        source = match["name"]
        kind = (
            "function" if source.endswith("__code__") else _class(match["type"] or "")
        )
        return Guard(
            "identity", _source(source.removesuffix(".__code__")), text, other=kind
        )
    if "got deallocated" in condition or "invalidated" in condition.lower():
        named = re.search(r"\((?P<name>[^)]*)\)|because (?P<bare>\S+)", condition)
        name = (named["name"] or named["bare"]) if named else "an object"
        return Guard("identity", _source(name), text, other="object that was freed")
    return None


def _alias(condition: str, text: str) -> Guard | None:
    if condition.startswith("Duplicate tensor"):
        names = re.findall(r"\"(.+?)\"", condition) or ["two inputs"]
        return Guard("alias", _source(names[0]), text, other=_source(names[-1]))
    match = re.match(r"(?P<one>\S+) is (?P<not>not )?(?P<two>\S+)$", condition)
    if match and match["two"] != "None":
        return Guard("alias", _source(match["one"]), text, other=_source(match["two"]))
    return None


def _ambient(condition: str, text: str) -> Guard | None:
    if match := re.match(r"GLOBAL_STATE changed: (?P<what>.+)$", condition):
        return Guard("global_state", match["what"].strip(), text)
    if "torch_function_mode_stack" in condition:
        return Guard("global_state", "torch function modes (default device)", text)
    if "___check_global_state" in condition:
        return Guard("global_state", "global torch state", text)
    if condition.startswith("BACKEND_MATCH"):
        return Guard("backend", "backend", text)
    return None


def _container(condition: str, text: str) -> Guard | None:
    match = re.match(r"len\((?P<name>.+)\) (?:==|!=) (?P<length>\d+)$", condition)
    if match:
        return Guard("length", _source(match["name"]), text, None, match["length"])
    if match := re.match(r"not (?P<name>[\w.\[\]'\"]+)$", condition):
        return Guard("length", _source(match["name"]), text, None, "0")
    match = re.match(
        r"list\((?:dict\.keys|[\w.]+)\((?P<name>.+?)\)\)(?:\[\d+\])? == (?P<keys>.+)$",
        condition,
    )
    if match:
        return Guard("keys", _source(match["name"]), text, None, match["keys"])
    match = re.match(
        r"(?:not )?___dict_contains\((?P<key>.+?), (?P<name>.+)\)$", condition
    )
    if match:
        return Guard("keys", _source(match["name"]), text, None, match["key"])
    return None


def _shape(condition: str, text: str) -> Guard | None:
    sizes = list(_SIZE.finditer(condition))
    if not sizes:
        if stride := _STRIDE.search(condition):
            source = _source(condition[: stride.start()].split()[-1])
            return Guard("stride", source, text, int(stride["dim"]))
        return None
    source, dim = _source(sizes[0]["tensor"]), int(sizes[0]["dim"])
    if "duck sizing" in text and len(sizes) > 1:
        other = f"{_source(sizes[1]['tensor'])}.size({sizes[1]['dim']})"
        size = re.search(r"same size (\d+)", text)
        return Guard(
            "equal_sizes", source, text, dim, size[1] if size else None, other=other
        )
    # A guard with an upper bound as well is one on the code's own condition.
    bounded = condition.count("<=") > 1
    if not bounded and ("0/1 specialization" in text or condition.startswith("2 <= ")):
        return Guard("size_one", source, text, dim, ">= 2", "0 or 1")
    exact = re.match(r"\S+\.size\(\)\[\d+\] == (\d+)$", condition)
    if exact:
        cause = "size_one" if exact[1] in {"0", "1"} else "size"
        return Guard(cause, source, text, dim, exact[1])
    return Guard("shape_condition", source, text, dim, other=_readable(condition))


def _value(condition: str, text: str) -> Guard | None:
    match = re.match(r"(?P<name>.+?) == (?P<value>.+)$", condition)
    if match is None:
        return None
    name, value = match["name"], match["value"]
    return Guard(_scalar_cause(name), _source(name), text, None, value)


def _anything(condition: str, text: str) -> Guard:
    return Guard("other", _readable(condition), text)


def _scalar_cause(name: str) -> str:
    """What kind of thing holds the value a guard compared."""
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


def _source(name: str) -> str:
    """Torch's source expression in the user's words: `L['x']` is x, `G['N']` is N."""
    name = re.sub(r"\b[LG]\['(\w+)'\]", r"\1", name.strip())
    name = re.sub(r"\._(?:modules|parameters|buffers)\['(\d+)'\]", r"[\1]", name)
    name = re.sub(r"\._(?:modules|parameters|buffers)\['(\w+)'\]", r".\1", name)
    name = re.sub(r"___from_numpy\((.+)\)", r"\1", name)
    name = re.sub(r"\.__dict__\['(\w+)'\]", r".\1", name)
    return re.sub(r"^___stack\d+$", BEFORE_THE_BREAK, name)


def readable_source(name: str) -> str:
    """Torch's source expression as `Guard.source` has it."""
    return _source(name)


def _readable(condition: str) -> str:
    return _source(_SIZE.sub(lambda m: f"{m['tensor']}.size({m['dim']})", condition))


def _class(text: str) -> str:
    """`<class 'torch.nn.parameter.Parameter'>` is Parameter."""
    return re.sub(r"<class '(.+)'>", r"\1", text).rsplit(".", 1)[-1]


_READERS: tuple[Callable[[str, str], Guard | None], ...] = (
    _tensor,
    _type,
    _identity,
    _alias,
    _ambient,
    _container,
    _shape,
    _value,
    _anything,
)
