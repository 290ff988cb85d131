"""Documents and bytes, changed at random: what a file may hold that nobody wrote."""

from __future__ import annotations

import copy
import json
import random
import re
import sys
from collections.abc import Iterator
from typing import Any

Chance = random.Random


class Raw(str):
    """JSON text that Python's own writer does not make."""


def deep(levels: int, pair: str = "[]") -> Raw:
    inner = "1" if pair == "[]" else '{"a":' * levels + "1" + "}" * levels
    return Raw("[" * levels + "1" + "]" * levels if pair == "[]" else inner)


HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, -1.5, 1e-320, 1e-300, 1e300, 1e308, Raw("1e999"), Raw("-1e999")),
    *(Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("9" * 5000)),
    *(Raw("-" + "9" * 30), Raw("0." + "1" * 5000)),
    *("", " ", "abc", "\n", "a\nb", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x00"),
    *(
        "\x7f",
        "\x9b31m",
        "\u202ereversed",
        "\u2028",
        "\u200b",
        "e\u0301" * 20,
        "\ud800",
    ),
    *("::error::x", "%0A", "|", "`", "``` ", "<script>", "&amp;", "[a](b)", "../../x"),
    *(
        "/",
        "-",
        "--format",
        "{}",
        "{0}",
        "%s",
        "$(id)",
        "2026-01-01T00:00:00",
        "x" * 9999,
    ),
    *("steps:", "steps:x", "\u6f22\u5b57" * 30, "C:\\x", "NaN", "1e5"),
    *([], {}, [[]], [None], [1, "a"], {"": 0}, {"a": {}}, {"\x1b[1m": "\x1b[1m"}),
    *(deep(30), deep(90), deep(600, "{}"), deep(100_000)),
    {"\ud800": 1},
    *([["a", "b"]], [[1.0, 2.0]], [{}], {"id": [], "median_ms": "x"}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in a document."""
    yield path
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value[:6])  # of many alike a few
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(document: Any, chance: Chance) -> Any:
    """A copy with one to three values replaced, removed, doubled or exchanged."""
    found = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        path = chance.choice(list(places(found)))
        if not path:
            if chance.random() < 0.1:
                return chance.choice(HOSTILE)
            continue
        holder = found
        for key in path[:-1]:
            holder = holder[key]
        _change_at(holder, path[-1], found, chance)
    return found


def _change_at(holder: Any, key: Any, document: Any, chance: Chance) -> None:
    action = chance.random()
    if action < 0.35:
        holder[key] = chance.choice(_alike(holder[key]))
    elif action < 0.7:
        holder[key] = chance.choice(HOSTILE)
    elif action < 0.8:
        del holder[key]
    elif action < 0.9:  # a value from elsewhere, of another type as a rule
        other = document
        for step in chance.choice(list(places(document))):
            other = other[step]
        holder[key] = copy.deepcopy(other)
    elif isinstance(holder, dict):
        name = chance.choice([each for each in HOSTILE if type(each) is str])
        holder[name] = copy.deepcopy(holder[key])
    else:
        holder.insert(0, chance.choice(HOSTILE))


def _alike(value: Any) -> list[Any]:
    """Hostile values of the same type, which a check of types lets through."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        numbers = [v for v in HOSTILE if type(v) in (int, float)]
        return [*numbers, 3, 1e-9, 1e29, 7.5]
    if isinstance(value, list):
        return [[], value[:1], value * 3, list(reversed(value))]
    if isinstance(value, dict):
        return [{}, dict(list(value.items())[:1]), dict(reversed(value.items()))]
    return [each for each in HOSTILE if type(each) is type(value)] or [value]


def written(document: Any) -> str:
    """JSON, with raw texts as they are."""
    raw: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raw.append(str(value))
            return f"@raw{len(raw) - 1}@"
        if isinstance(value, dict):
            return {key: marked(each) for key, each in value.items()}
        return list(map(marked, value)) if isinstance(value, list) else value

    sys.set_int_max_str_digits(0)
    text = json.dumps(marked(document), indent=1)
    sys.set_int_max_str_digits(4300)
    return re.sub(r'"@raw(\d+)@"', lambda found: raw[int(found[1])], text)


def spoilt(content: bytes, chance: Chance) -> bytes:
    """Bytes flipped, cut off, inserted, doubled or exchanged."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(found) + 1)
        action = chance.randrange(6)
        if action == 0 and found:
            found[at % len(found)] ^= 1 << chance.randrange(8)
        elif action == 1:
            del found[at:]
        elif action == 2:
            odd = (
                b"\x00",
                b"\xff\xfe",
                b"\x1b[2J",
                b"\r",
                b"\xed\xa0\x80",
                b"[" * 4000,
            )
            found[at:at] = chance.choice(odd)
        elif action == 3:
            end = at + chance.randrange(40)
            found[at:at] = found[at:end]
        elif action == 4:
            del found[at : at + chance.randrange(1, 40)]
        else:
            found[at:at] = chance.randbytes(chance.randrange(1, 20))
    return bytes(found)


def json_file(document: Any, chance: Chance) -> bytes:
    """A document that is changed, or whose bytes are, or both."""
    shape = chance.random()
    plain = changed(document, chance) if shape < 0.8 else document
    content = written(plain).encode("utf-8", "surrogatepass")
    return spoilt(content, chance) if shape > 0.75 else content
