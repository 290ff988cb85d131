"""Documents and bytes, changed at random: what a file may hold that nobody wrote."""

from __future__ import annotations

import json
import pickle
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

Chance = random.Random
_RAW: dict[str, str] = {}  # by mark
_MARK = re.compile(r'"(@raw\d+@)"')


def raw(text: str) -> str:
    """A mark for JSON text that Python's own writer does not make."""
    mark = f"@raw{len(_RAW)}@"
    _RAW[mark] = text
    return mark


def deep(levels: int, pair: str = "[]") -> str:
    inner = "1" if pair == "[]" else '{"a":' * levels + "1" + "}" * levels
    return raw("[" * levels + "1" + "]" * levels if pair == "[]" else inner)


# Text that would make the folder MARKER if anything ran it, and a file that only a
# path out of the folder of a case reaches.
MARKER = "EXECUTED"
OUTSIDE = "../../neighbour/secret"
PAYLOADS: tuple[str, ...] = (
    f"__import__('os').mkdir('{MARKER}')",
    f"$(mkdir {MARKER})",
    f"`mkdir {MARKER}`",
    f"; mkdir {MARKER};",
    f"| mkdir {MARKER}",
    f"{{0.__class__.__init__.__globals__[os].mkdir('{MARKER}')}}",
    "evil",
    "evil:make",
    "evil.py:make",
    "evil.py",
)

_CONTROL = (
    *(
        "\n",
        "a\nb",
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07",
        "\x00",
        "\x7f",
        "\x9b31m",
    ),
    *("\u202ereversed", "\u2028", "\u200b", "e\u0301" * 20, "\ud800"),
)
_MARKUP = (
    *("::error::x", "%0A", "|", "`", "``` ", "<script>", "&amp;", "[a](b)", "../../x"),
    *("/", "-", "--format", "{}", "{0}", "%s", "$(id)", "C:\\x", "NaN", "1e5"),
    *("2026-01-01T00:00:00", "x" * 9999, "steps:", "steps:x", "\u6f22\u5b57" * 30),
)
_ELSEWHERE = (f"{OUTSIDE}.py", f"{OUTSIDE}.json", f"{OUTSIDE}.py:make", "/etc/passwd")
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, -1.5, 1e-320, 1e-300, 1e300, 1e308, raw("1e999"), raw("-1e999")),
    *(raw("NaN"), raw("Infinity"), raw("-Infinity"), raw("9" * 5000)),
    *(raw("-" + "9" * 30), raw("0." + "1" * 5000)),
    *("", " ", "abc", *_CONTROL, *_MARKUP, *PAYLOADS, *_ELSEWHERE),
    *([], {}, [[]], [None], [1, "a"], {"": 0}, {"a": {}}, {"\x1b[1m": "\x1b[1m"}),
    *(deep(30), deep(90), deep(600, "{}"), deep(100_000), {"\ud800": 1}),
    *([["a", "b"]], [[1.0, 2.0]], [{}], {"id": [], "median_ms": "x"}),
)
TEXTS: tuple[str, ...] = tuple(
    each for each in HOSTILE if type(each) is str and each not in _RAW
)
_NUMBERS = (*(v for v in HOSTILE if type(v) in (int, float)), 3, 1e-9, 1e29, 7.5)
_SAME_TYPE: dict[type, tuple[Any, ...]] = {str: TEXTS, bool: (True, False)}


_BYTES = (b"\x00", b"\xff\xfe", b"\x1b[2J", b"\r", b"\xed\xa0\x80", b"[" * 4000)
Path = tuple[Any, ...]
_PLACES: dict[int, tuple[Any, list[Path]]] = {}  # by the document's identity


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of each value in a document."""
    yield path
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value[:6])  # of many alike a few
    for key, inner in items:
        yield from places(inner, (*path, key))


def _places_of(document: Any) -> list[Path]:
    """Found once for a document that is mutated again and again."""
    if id(document) not in _PLACES:
        _PLACES[id(document)] = document, list(places(document))
    return _PLACES[id(document)][1]


def copied(document: Any) -> Any:
    """A deep copy; pickle is several times as fast as `copy`."""
    return pickle.loads(pickle.dumps(document, pickle.HIGHEST_PROTOCOL))


def changed(document: Any, chance: Chance) -> Any:
    """A copy with one to three values replaced, removed, doubled or exchanged."""
    mutated, paths = copied(document), _places_of(document)

    def elsewhere() -> Any:
        return copied(_at(mutated, chance.choice(paths)))

    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        path = chance.choice(paths)
        if not path:
            if chance.random() < 0.1:
                return _hostile(chance)
            continue
        try:  # an earlier change may have removed the place
            _change_at(_at(mutated, path[:-1]), path[-1], chance, elsewhere)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
    return mutated


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


def _change_at(
    holder: Any, key: Any, chance: Chance, elsewhere: Callable[[], Any]
) -> None:
    action = chance.random()
    if action < 0.35:
        holder[key] = chance.choice(_alike(holder[key]))
    elif action < 0.7:
        holder[key] = _hostile(chance)
    elif action < 0.8:
        del holder[key]
    elif action < 0.9:  # a value from elsewhere, of another type as a rule
        holder[key] = elsewhere()
    elif isinstance(holder, dict):
        holder[chance.choice(TEXTS)] = copied(holder[key])
    else:
        holder.insert(0, _hostile(chance))


def _hostile(chance: Chance) -> Any:
    value = chance.choice(HOSTILE)
    return copied(value) if isinstance(value, dict | list) else value


def _alike(value: Any) -> Any:
    """Hostile values of the same type, which a check of types lets through."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _NUMBERS
    if isinstance(value, list):
        return [[], value[:1], value * 3, list(reversed(value))]
    if isinstance(value, dict):
        return [{}, dict(list(value.items())[:1]), dict(reversed(value.items()))]
    return _SAME_TYPE.get(type(value)) or [value]


def written(document: Any, indent: int | None = None) -> str:
    """JSON, with raw texts as they are."""
    return with_raw(json.dumps(document, indent=indent))


def with_raw(text: str) -> str:
    """A document as text, with the raw texts in place of their marks."""
    return _MARK.sub(lambda mark: _RAW[mark[1]], text)


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
            found[at:at] = chance.choice(_BYTES)
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

    def made() -> bytes:
        shape = chance.random()
        plain = changed(document, chance) if shape < 0.8 else document
        content = written(plain).encode("utf-8", "surrogatepass")
        return spoilt(content, chance) if shape > 0.75 else content

    sound = written(document).encode("utf-8", "surrogatepass")
    return other_than(sound, made)


def other_than(sound: bytes, make: Callable[[], bytes]) -> bytes:
    """What `make` gives, again until it differs: a mutation may change nothing."""
    while (content := make()) == sound:
        pass
    return content
