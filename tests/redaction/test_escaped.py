"""A secret is found however its characters are escaped, alone and mixed."""

from __future__ import annotations

import base64
import html
import json
import unicodedata
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchproof.packs.redaction.redactor import Redactor

SECRET = "p\u00e4ssw\u00f6rd-\u00df-42"
LETTERS = "abcdefgXYZ0189-_.+!\u00e4\u00f6\u00df\u00e9\u00f1\u4e2d\u6587\U0001f511"
secrets = st.text(LETTERS, min_size=8, max_size=24).filter(lambda s: len(set(s)) > 5)

Way = Callable[[str], str]


def by_bytes(form: str, encoding: str = "utf-8") -> Way:
    """Each byte of a character in a form; one that the encoding lacks as it is."""

    def way(letter: str) -> str:
        try:
            return "".join(form.format(byte) for byte in letter.encode(encoding))
        except UnicodeEncodeError:
            return letter

    return way


def unit(letter: str) -> str:
    """As JSON writes it: two units for what is beyond the first plane."""
    raw = letter.encode("utf-16-be")
    return "".join(f"\\u{raw[i]:02x}{raw[i + 1]:02x}" for i in range(0, len(raw), 2))


WAYS: dict[str, Way] = {
    "plain": str,
    "hex bytes": by_bytes("\\x{:02x}"),
    "hex bytes, upper": by_bytes("\\x{:02X}"),
    "hex bytes of latin-1": by_bytes("\\x{:02x}", "latin-1"),
    "octal": by_bytes("\\{:03o}"),
    "percent": by_bytes("%{:02X}"),
    "percent, lower": by_bytes("%{:02x}"),
    "unit": unit,
    "long": lambda letter: f"\\U{ord(letter):08x}",
    "name": lambda letter: f"\\N{{{unicodedata.name(letter)}}}",
    "braces": lambda letter: f"\\u{{{ord(letter):x}}}",
    "decimal entity": lambda letter: f"&#{ord(letter)};",
    "hex entity": lambda letter: f"&#x{ord(letter):X};",
    "twice escaped": lambda letter: by_bytes("\\\\x{:02x}")(letter),
}


def hidden(text: str, secret: str = SECRET) -> str:
    return Redactor.here({"DB_PASSWORD": secret}).text(text)


WRITTEN = {
    "repr of bytes": repr(SECRET.encode()),
    "repr of latin-1 bytes": repr(SECRET.encode("latin-1")),
    "repr of repr": repr(repr(SECRET.encode())),
    "ascii": ascii(SECRET),
    "unicode_escape": SECRET.encode("unicode_escape").decode(),
    "namereplace": SECRET.encode("ascii", "namereplace").decode(),
    "xmlcharrefreplace": SECRET.encode("ascii", "xmlcharrefreplace").decode(),
    "entities": SECRET.replace("\u00e4", "&auml;").replace("\u00f6", "&ouml;"),
    "json": json.dumps({"a": SECRET}),
    "url of latin-1": quote(SECRET, encoding="latin-1"),
    "html": html.escape(SECRET),
    "base64 of latin-1": base64.b64encode(SECRET.encode("latin-1")).decode(),
    "hex of latin-1": SECRET.encode("latin-1").hex(),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("around", ["{}", "x = {} # y", 'log("a\\n{}\\n")', "[1m{}[0m"])
def test_no_written_form_survives(name: str, around: str) -> None:
    left = hidden(around.format(WRITTEN[name]))
    assert "<secret>" in left
    assert not any(part in left for part in ("ssw", "rd-", "42"))


@settings(max_examples=150, deadline=None)
@given(
    st.data(), secrets, st.sampled_from(["", "a ", "C:\\new\\x=", "100% & ", "\\\\ "])
)
def test_no_mixture_of_escapes_survives(
    data: st.DataObject, secret: str, before: str
) -> None:
    one_encoding = data.draw(st.booleans())
    names = [n for n in WAYS if ("latin-1" in n) is one_encoding or n == "plain"]
    ways = data.draw(st.lists(st.sampled_from(names), min_size=4, max_size=40))
    text = "".join(WAYS[ways[i % len(ways)]](letter) for i, letter in enumerate(secret))
    left = hidden(f"{before}{text} after", secret)
    assert text not in left and "<secret>" in left and left.endswith(" after")


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), secrets)
def test_what_holds_no_secret_stays(text: str, secret: str) -> None:
    """The clean twin: escapes that mean something else are left alone."""
    for way in WAYS.values():
        try:
            written = "".join(way(letter) for letter in text if letter.isprintable())
        except (ValueError, UnicodeEncodeError):
            continue
        redactor = Redactor.here({"DB_PASSWORD": secret})
        plain = Redactor.here({})
        if secret not in text:
            assert redactor.text(written) == plain.text(written)


def test_a_name_in_escaped_bytes_is_hidden_too() -> None:
    redactor = Redactor.here({"USER": "m\u00fcllerin", "HOME": "/home/m\u00fcllerin"})
    left = redactor.text(repr("/home/m\u00fcllerin/net.py by m\u00fcllerin".encode()))
    assert "llerin" not in left and "net.py" in left


PINS = {
    "4711": ('PIN "4711" given', "PIN=4711", "'4711'", '{\\"pin\\": \\"4711\\"}'),
    "a1b2": ("the pin is a1b2.", "x = 'a1b2'", "a1b2", "PIN: a1b2"),
}
KEPT = {"4711": ("shape (4711, 8)", "line 4711"), "a1b2": ("da1b2c", "a1b2_x")}


@pytest.mark.parametrize("pin", PINS)
def test_a_short_secret_is_hidden_where_it_stands_alone(pin: str) -> None:
    redactor = Redactor.here({"PIN": pin})
    for text in PINS[pin]:
        assert pin not in redactor.text(text), text
    for text in KEPT[pin]:
        assert redactor.text(text) == text
    assert redactor.json({"PIN": pin, "value": [pin]}) == {
        "PIN": "<secret>",
        "value": ["<secret>"],
    }
