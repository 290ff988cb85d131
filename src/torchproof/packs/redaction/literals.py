"""The private values as literals, each with a pattern of where to redact it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchproof.packs.redaction.common_words import SHORT, is_common
from torchproof.packs.redaction.machine import PrivateValues

# A secret of at least this length is hidden wherever it occurs.
SECRET_LENGTH = 6
_LEAST = 4  # shorter ones are hidden only if they are assigned to their variable
_WORD = r"[A-Za-z0-9]"
# Parents of directories that are named after a person.
_PARENTS = r"(?:home|Users|scratch|user|users|nfs|homes)"


@dataclass(frozen=True)
class Literal:
    """One spelling of a private value; without `pattern` it is hidden anywhere."""

    value: str
    placeholder: str
    pattern: str | None = None  # compiled only if the value occurs, which is rare

    def hide(self, text: str) -> tuple[str, int]:
        if self.value not in text:
            return text, 0
        if self.pattern is not None:
            return re.subn(self.pattern, self.placeholder, text)
        return text.replace(self.value, self.placeholder), text.count(self.value)


def literals(private: PrivateValues) -> tuple[Literal, ...]:
    """The literals in the order of hiding: longer values before their parts."""
    ordered = [*_secrets(private.secrets)]
    for placeholder, folders in (
        ("<project>", private.projects),
        ("<tmp>", private.temporary),
        ("<home>", private.homes),
    ):
        for folder in _longest_first(folders):
            ordered += _folder(folder, placeholder)
    names = _longest_first({part for name in private.names for part in _parts(name)})
    for name in names:
        ordered += _name(name)
    hosts = {form for host in private.hosts for form in _host_forms(host)}
    for host in _longest_first(hosts):
        ordered += _words(host, "<host>")
    return tuple(ordered)


def _longest_first(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values), key=lambda value: (-len(value), value)))


def _is_uncommon(value: str) -> bool:
    """Whether a value is hidden wherever it occurs, because it is no common word."""
    return len(value) >= SECRET_LENGTH and not is_common(value)


def _secrets(secrets: Iterable[tuple[str, str]]) -> Iterator[Literal]:
    spelled: dict[str, Literal] = {}
    for variable, value in secrets:
        if variable:
            assigned = _assigned(variable, value)
            spelled[f"{variable}={value}"] = Literal(value, r"\1<secret>", assigned)
        if _LEAST <= len(value) < SECRET_LENGTH and not is_common(value):
            spelled[f"={value}"] = Literal(value, r"\1<secret>", _alone(value))
        pieces = [value, *value.splitlines()] if "\n" in value else [value]
        for piece in filter(_is_uncommon, map(str.strip, pieces)):
            # Hide a word or a number only if it is a whole word.
            plain = re.fullmatch(r"[A-Za-z]{,11}|\d{,9}", piece)
            pattern = _whole(piece) if plain else None
            for text in {piece, repr(piece)[1:-1]}:  # as in logs and in source
                spelled[text] = Literal(text, "<secret>", pattern)
    yield from sorted(
        spelled.values(), key=lambda literal: (-len(literal.value), literal.value)
    )


def _alone(value: str) -> str:
    """The pattern of a short value: a whole word; letters or digits only in quotes."""
    word = re.escape(value)
    if value.isdigit() or value.isalpha():
        return rf"(\\*[\"']){word}(?=\\*[\"'])"
    return rf"((?<![\w.-])){word}(?![\w-])"


def _assigned(variable: str, value: str) -> str:
    name = re.escape(variable)
    return rf"({name}\\*[\"']?\s*[:=]\s*\\*[\"']?){re.escape(value)}(?!\w)"


def _folder(folder: str, placeholder: str) -> Iterator[Literal]:
    # `/root` may be part of another path, `/home/ann` may not.
    path = re.escape(folder)
    boundary = "" if folder.count("/") > 1 else _left(path, r"[\w./~-]")
    yield Literal(folder, placeholder, rf"{path}{boundary}(?!\w|-\w)")
    if folder.count("/") > 1 and placeholder == "<home>":
        # Some tools turn paths into file names.
        for mark in "-_.!":
            text = folder.replace("/", mark)
            pattern = rf"{re.escape(text)}(?!{_WORD})"
            yield Literal(text, placeholder, pattern)


def _parts(name: str) -> Iterator[str]:
    """The full name, and each of its words."""
    yield name
    yield from name.split()


def _host_forms(host: str) -> tuple[str, str]:
    return host, host.partition(".")[0]


def _name(name: str) -> Iterator[Literal]:
    if not is_common(name) and len(name) >= SHORT:
        yield from _words(name, "<user>")
        return
    word = re.escape(name)
    homes = rf"((?:{_PARENTS}|torchinductor_|hsperfdata_|pytest-of-)/?)"
    for pattern in (
        rf"{homes}{word}(?![\w-])",
        rf"((?<![\w.-])){word}(?=@[A-Za-z0-9])",
    ):
        yield Literal(name, r"\1<user>", pattern)
    if not is_common(name):
        pattern = rf"(/){word}(?=/)"
        yield Literal(name, r"\1<user>", pattern)


def _words(value: str, placeholder: str) -> Iterator[Literal]:
    """A name as a whole word, in all usual cases."""
    if is_common(value) or len(value) < SHORT:
        return
    cases = {value, value.lower(), value.upper(), value.capitalize()}
    for text in _longest_first(cases):
        yield Literal(text, placeholder, _whole(text))


def _whole(text: str) -> str:
    word = re.escape(text)
    return rf"{word}{_left(word, _WORD)}(?!{_WORD})"


def _left(word: str, inside: str) -> str:
    """The condition that no `inside` precedes the word, except the end of an escape.

    The pattern has it after the word, so that the search for the word is fast.
    """
    escapes = (
        r"\\[abfnrtv0]",
        r"\\x[0-9a-f]{2}",
        r"\\u[0-9a-f]{4}",
        r"[0-9\[;]m",  # the end of a colour
        "-[ILB]",  # compiler options
    )
    exceptions = "".join(f"|(?<={escape}{word})" for escape in escapes)
    return f"(?:(?<!{inside}{word}){exceptions})"
