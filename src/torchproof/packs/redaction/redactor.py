"""Redacts text, Python source, JSON and bytes.

Takes text, returns it with placeholders for names, home directories, hosts and secrets.
"""

from __future__ import annotations

import builtins
import io
import os
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torchproof.packs.redaction import secret_patterns
from torchproof.packs.redaction.common_words import is_common, is_switch, says_secret
from torchproof.packs.redaction.literals import literals
from torchproof.packs.redaction.machine import PrivateValues, private_values

# The pattern matches `/` first and then looks behind it: that search is fast.
_SITE = re.compile(
    r"/(?:(?<![\w.~>-]/)|(?<=\\[nrt]/)|(?<=-[ILB]/))"
    r"(?:[\w.+~@-]+/)+?(?:site|dist)-packages(?=/)"
)
# Home directories of any user; every such path contains the mark.
_PEOPLE = (
    *(
        (mark, re.compile(rf"(/{mark}/)(?![<{{$%])[\w.+~@-]*[\w+~@-]"))
        for mark in ("home", "Users")
    ),
    *(
        (mark, re.compile(rf"(/{mark})(?!<)[\w.-]*\w"))
        for mark in ("torchinductor_", "hsperfdata_", "pytest-of-")
    ),
)
_PLACEHOLDER = re.compile(r"<([a-z-]+)>")


class Redactor:
    """Hides `PrivateValues`, and everything that matches a secret's pattern.

    Equal values get equal placeholders. `counts` has the number of replacements by
    kind, never a value.
    """

    def __init__(self, private: PrivateValues) -> None:
        self.counts: Counter[str] = Counter()
        self._literals = literals(private)
        self._plain: set[str] = set()  # identifiers without private values
        self._values = {value for _, value in private.secrets}

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
        if secret_patterns.vendor_patterns():
            return ()
        return (
            "detect-secrets is not installed, so the tokens of some vendors were not"
            " searched for: pip install detect-secrets, or read the pack before you"
            " publish it",
        )

    def text(self, text: str) -> str:
        text = self._hide_literals(text, secrets=True)
        text = self._hide_forms(text)
        text = self._hide_places(text, secret_patterns.vendor_tokens)
        text = self._count("<secret>", secret_patterns.assigned_values(text))
        text = self._count("<site-packages>", _SITE.subn("<site-packages>", text))
        text = self._hide_places(text, secret_patterns.emails)
        text = self._hide_literals(text, secrets=False)
        for mark, pattern in _PEOPLE:
            if mark in text:
                text = self._count("<user>", pattern.subn(r"\1<user>", text))
        return self._hide_places(text, secret_patterns.addresses)

    def source(self, text: str) -> str:
        """Redact Python source, which still parses: identifiers stay identifiers."""
        source = _rewritten(text, self.text, self._identifier)
        if source is None:
            return self.text(text)
        source = self._count("<secret>", secret_patterns.quoted_values(source))
        return self._hide_known(source)

    def bytes(self, data: builtins.bytes) -> builtins.bytes:
        """Redact bytes; if they are not UTF-8 text, their length does not change."""
        try:
            return self.text(data.decode()).encode()
        except UnicodeError:
            return self._binary(data)

    def json(self, value: Any) -> Any:
        """Redact plain data, including its keys."""
        if isinstance(value, str) and not self._is_whole(value):
            return self.text(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return [self.json(entry) for entry in value]
        if self._is_whole(value):
            self.counts["secret"] += 1
            return "<secret>"
        return value

    def _is_whole(self, value: Any) -> bool:
        """Whether the whole value is a secret, however short."""
        return str(value) in self._values and not is_common(str(value))

    def name(self, name: str) -> str:
        """Redact a file name, with placeholders that have no special characters."""
        return _PLACEHOLDER.sub(r"\1", self.text(name))

    def _hide_forms(self, text: str) -> str:
        lower = text.lower()
        for form in secret_patterns.FORMS:
            if form.mark in lower:
                replacement = form.pattern.subn(form.placeholder, text)
                text = self._count("<secret>", replacement)
        return text

    def _hide_known(self, text: str) -> str:
        text = self._hide_literals(text, secrets=True)
        return self._hide_literals(text, secrets=False)

    def _hide_literals(self, text: str, *, secrets: bool) -> str:
        for literal in self._literals:
            if literal.placeholder.endswith("<secret>") is secrets:
                text = self._count(literal.placeholder, literal.hide(text))
        return text

    def _hide_places(
        self, text: str, find: Callable[[str], Iterator[secret_patterns.Place]]
    ) -> str:
        pieces, end = [], 0
        for place in sorted(find(text), key=lambda place: place.start):
            if place.start >= end:
                pieces += [text[end : place.start], place.placeholder]
                self._count(place.placeholder, ("", 1))
                end = place.end
        return "".join([*pieces, text[end:]]) if pieces else text

    def _identifier(self, name: str) -> str:
        if name in self._plain:
            return name
        hidden = self._hide_known(name)
        if hidden == name:
            self._plain.add(name)
            return name
        if name[0].isdigit():
            return "0"
        return _PLACEHOLDER.sub(lambda match: match[1].replace("-", "_"), hidden)

    def _mapping(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        redacted: dict[Any, Any] = {}
        for key, entry in value.items():
            is_secret = isinstance(key, str) and key.isupper() and says_secret(key)
            is_secret = is_secret and isinstance(entry, str) and not is_switch(entry)
            name = self.text(key) if isinstance(key, str) else key
            while name in redacted:
                name = f"{name}+"
            if is_secret and entry not in ("", "<secret>"):
                self.counts["secret"] += 1
                entry = "<secret>"
            redacted[name] = self.json(entry)
        return redacted

    def _binary(self, data: builtins.bytes) -> builtins.bytes:
        for literal in self._literals:
            value = literal.value.encode("utf-8", "surrogatepass")
            kind = _PLACEHOLDER.findall(literal.placeholder)[0]
            if literal.placeholder.startswith("\\1"):
                continue
            if len(value) >= 6 and (times := data.count(value)):
                filler = f"<{kind}>".encode().ljust(len(value), b"_")[: len(value)]
                data = data.replace(value, filler)
                self.counts[kind] += times
        return data

    def _count(self, placeholder: str, replacement: tuple[str, int]) -> str:
        """Count the replacements of a `subn`, and return its text."""
        text, times = replacement
        kind = _PLACEHOLDER.findall(placeholder)[-1]
        if times and kind != "site-packages":  # only shortens a path
            self.counts[kind] += times
        return text


# -- Python source ---------------------------------------------------------------------

_TEXTS = {"COMMENT", "STRING", "FSTRING_MIDDLE", "TSTRING_MIDDLE"}
_WORDS = {"NAME", "NUMBER"}
_FORMATTED = re.compile(r"[rRbBuU]?[fFtT]")


def _rewritten(
    source: str, text: Callable[[str], str], identifier: Callable[[str], str]
) -> str | None:
    """The source with `text` applied to strings and comments, `identifier` to names.

    None if it is not Python source.
    """
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return None
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    pieces, end = [], 0
    for token in tokens:
        kind = tokenize.tok_name[token.type]
        if kind not in _TEXTS | _WORDS:
            continue
        # The braces of a formatted string contain code.
        code = kind in _WORDS or _FORMATTED.match(token.string)
        written = (identifier if code else text)(token.string)
        first = starts[token.start[0] - 1] + token.start[1]
        last = starts[token.end[0] - 1] + token.end[1]
        pieces += [source[end:first], written]
        end = last
    return "".join([*pieces, source[end:]])
