"""Redacts text, Python source and JSON.

Takes text, returns it with placeholders for names, home directories, hosts and secrets.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torchproof.packs.redaction import patterns
from torchproof.packs.redaction.common_words import (
    SHORT,
    is_common,
    is_switch,
    says_secret,
)
from torchproof.packs.redaction.machine import PrivateValues, private_values
from torchproof.packs.redaction.patterns import SECRET, Rule, word

_SECRET_LENGTH = 6  # shorter secrets are hidden only where they are assigned
_PLACEHOLDER = re.compile(r"<([a-z-]+)>")


class Redactor:
    """Hides `PrivateValues`, and everything that matches a secret's pattern.

    Equal values get equal placeholders. `counts` has the number of replacements by
    kind, never a value.
    """

    def __init__(self, private: PrivateValues) -> None:
        self.counts: Counter[str] = Counter()
        secrets, others = [*_secrets(private)], [*_places_and_names(private)]
        self._known = (*secrets, *others)
        self._rules = (
            *secrets,
            *patterns.SECRETS,
            *patterns.vendor_rules(),
            patterns.SITE_PACKAGES,
            patterns.EMAIL,
            *others,
            *patterns.PEOPLE,
            patterns.ADDRESS,
        )

    @classmethod
    def here(
        cls, environ: Mapping[str, str] | None = None, projects: Iterable[str] = ()
    ) -> Redactor:
        """The redactor for this machine, this account and an environment."""
        variables = os.environ if environ is None else environ
        return cls(private_values(variables, [*projects, os.getcwd()]))

    @staticmethod
    def notes() -> tuple[str, ...]:
        """What was not searched for, in one line for the user."""
        if patterns.vendor_rules():
            return ()
        return (
            "detect-secrets is not installed, so the tokens of some vendors were not"
            " searched for: pip install detect-secrets, or read the pack before you"
            " publish it",
        )

    def text(self, text: str) -> str:
        return self._applied(self._rules, text)

    def source(self, text: str) -> str:
        """Redact Python source, which still parses: identifiers stay identifiers."""
        lines = io.StringIO(text).readlines()
        try:
            tokens = [*tokenize.generate_tokens(iter([*lines, ""]).__next__)]
        except (tokenize.TokenError, SyntaxError):
            return self.text(text)
        starts = [0, *itertools.accumulate(map(len, lines))]
        pieces, end = [], 0
        for token in tokens:
            if (new := self._token(token)) != token.string:
                begin, last = (starts[n - 1] + at for n, at in (token.start, token.end))
                pieces += [text[end:begin], new]
                end = last
        return self._applied([patterns.QUOTED], "".join([*pieces, text[end:]]))

    def _token(self, token: tokenize.TokenInfo) -> str:
        kind, text = tokenize.tok_name[token.type], token.string
        # The braces of a formatted string contain code; before Python 3.12, one token
        # has all of it.
        is_code = kind in ("NAME", "NUMBER") or _FORMATTED.match(text)
        if kind in _TEXTS and not is_code:
            return self.text(text)
        hidden = self._applied(self._known, text) if is_code else text
        if kind == "NUMBER":
            return text if hidden == text else "0"
        return _plain(hidden) if hidden != text else text

    def json(self, value: Any, *, is_secret: bool = False) -> Any:
        """Redact plain data, including its keys, and values of secret variables."""
        if isinstance(value, Mapping):
            return {
                self.json(key): self.json(
                    entry,
                    is_secret=isinstance(key, str)
                    and key.isupper()
                    and says_secret(key),
                )
                for key, entry in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.json(entry) for entry in value]
        if not isinstance(value, str):
            return value
        if is_secret and value not in ("", SECRET) and not is_switch(value):
            self.counts["secret"] += 1
            return SECRET
        return self.text(value)

    def name(self, name: str) -> str:
        """Redact a file name, with placeholders that have no special characters."""
        return _PLACEHOLDER.sub(r"\1", self.text(name))

    def _applied(self, rules: Iterable[Rule], text: str) -> str:
        for rule in rules:
            text, count = rule.apply(text)
            if count and rule is not patterns.SITE_PACKAGES:  # only shortens a path
                self.counts[rule.kind] += count
        return text


_TEXTS = {"COMMENT", "STRING", "FSTRING_MIDDLE", "TSTRING_MIDDLE"}
_FORMATTED = re.compile(r"[rRbBuU]?[fFtT][rR]?['\"]")


def _plain(text: str) -> str:
    """Placeholders as parts of identifiers."""
    return _PLACEHOLDER.sub(lambda match: match[1].replace("-", "_"), text)


# -- private values as rules, longer ones before their parts ---------------------------


def _longest_first(values: Iterable[str]) -> list[str]:
    return sorted(set(values), key=lambda value: (-len(value), value))


def _secrets(private: PrivateValues) -> Iterator[Rule]:
    pieces = {line.strip() for value in private.secrets for line in value.splitlines()}
    pieces |= {repr(piece)[1:-1] for piece in pieces}  # as in source
    for piece in _longest_first(pieces):
        if len(piece) >= _SECRET_LENGTH and not is_common(piece):
            # Hide a word or a number only if it is a whole word.
            plain = re.fullmatch(r"[A-Za-z]{,11}|\d{,9}", piece)
            pattern = re.escape(piece)
            yield Rule("secret", word(pattern) if plain else pattern, SECRET, piece)


def _places_and_names(private: PrivateValues) -> Iterator[Rule]:
    for kind, folders in (
        ("project", private.projects),
        ("tmp", private.temporary),
        ("home", private.homes),
    ):
        for folder in _longest_first(folders):
            start = "" if folder.count("/") > 1 else r"(?<![\w./~-])"
            pattern = rf"{start}{re.escape(folder)}(?!\w|-\w)"
            yield Rule(kind, pattern, f"<{kind}>", folder)
    names = {part for name in private.names for part in (name, *name.split())}
    hosts = {form for host in private.hosts for form in (host, host.partition(".")[0])}
    for kind, values in (("user", names), ("host", hosts)):
        for value in _longest_first(values):
            if len(value) >= SHORT and not is_common(value):
                pattern = word(f"(?i:{re.escape(value)})")
                yield Rule(kind, pattern, f"<{kind}>")
