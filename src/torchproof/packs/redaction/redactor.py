"""Text in, the same text out without names, folders of people, machines and secrets."""

from __future__ import annotations

import builtins
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torchproof.packs.redaction import python_source, secret_patterns
from torchproof.packs.redaction.common_words import is_common, is_switch, says_secret
from torchproof.packs.redaction.literals import broken_over_lines, literals
from torchproof.packs.redaction.machine import Known, known
from torchproof.packs.redaction.spellings import squeezed
from torchproof.packs.redaction.unescaping import meanings

_STEP = r"(?:\\?/|%2F)"
# `/` is met first, and what precedes it is looked at behind it: that search is fast.
_SITE = re.compile(
    r"/(?:(?<![\w.~>-]/)|(?<=\\[nrt]/)|(?<=-[ILB]/))"
    r"(?:[\w.+~@-]+/)+?(?:site|dist)-packages(?=/)"
)
# Folders of people, whoever they are; the mark stands in every such path.
_PEOPLE = (
    *(
        (mark, re.compile(rf"({_STEP}{mark}{_STEP})(?![<{{$%])[\w.+~@-]*[\w+~@-]"))
        for mark in ("home", "Users")
    ),
    *(
        (mark, re.compile(rf"({_STEP}{mark})(?!<)[\w.-]*\w"))
        for mark in ("torchinductor_", "hsperfdata_", "pytest-of-")
    ),
)
_PLACEHOLDER = re.compile(r"<([a-z-]+)>")


class Redactor:
    """Hides what `Known` names and what is known by its form.

    The same value gives the same placeholder everywhere. `counts` says what was hidden
    and how often, never the value.
    """

    def __init__(self, known: Known) -> None:
        self.counts: Counter[str] = Counter()
        self._known = known
        self._literals = literals(known)
        self._wrapped = broken_over_lines(known)
        self._plain: set[str] = set()  # identifiers that hold nothing
        self._values = {value for _, value in known.secrets}

    @classmethod
    def here(
        cls, environ: Mapping[str, str] | None = None, projects: Iterable[str] = ()
    ) -> Redactor:
        """Of this machine, this account and an environment."""
        given = os.environ if environ is None else environ
        return cls(known(given, [*projects, os.getcwd()]))

    def text(self, text: str) -> str:
        text = self._hide_literals(text, secrets=True)
        text = self._hide_forms(text)
        text = self._count("<secret>", secret_patterns.assigned_values(text))
        text = self._count("<site-packages>", _SITE.subn("<site-packages>", text))
        text = self._hide_places(text, secret_patterns.emails)
        text = self._hide_literals(text, secrets=False)
        for mark, pattern in _PEOPLE:
            if mark in text:
                text = self._count("<user>", pattern.subn(r"\1<user>", text))
        return self._hide_places(text, secret_patterns.addresses)

    def source(self, text: str) -> str:
        """Python source that still parses: identifiers stay identifiers."""
        found = python_source.rewritten(text, self.text, self._identifier)
        if found is None:
            return self.text(text)
        found = self._count("<secret>", secret_patterns.quoted_values(found))
        return self._hide_known(found)

    def bytes(self, data: builtins.bytes) -> builtins.bytes:
        """Text as text; what is no text keeps its length."""
        try:
            return self.text(data.decode()).encode()
        except UnicodeError:
            return self._binary(data)

    def json(self, value: Any) -> Any:
        """Plain data, its keys included."""
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
        """Whether a plain value is a secret, however short."""
        return str(value) in self._values and not is_common(str(value))

    def name(self, name: str) -> str:
        """The name of a file, without signs that a shell reads."""
        return _PLACEHOLDER.sub(r"\1", self.text(name))

    def is_clean(self, text: str) -> bool:
        """Whether nothing is left to hide."""
        before = self.counts.copy()
        clean = self.text(text) == text
        self.counts = before
        return clean

    def _hide_forms(self, text: str) -> str:
        lower = text.lower()
        for form in secret_patterns.FORMS:
            if form.mark in lower:
                found = form.pattern.subn(form.placeholder, text)
                text = self._count("<secret>", found)
        return text

    def _hide_known(self, text: str) -> str:
        text = self._hide_literals(text, secrets=True)
        return self._hide_literals(text, secrets=False)

    def _hide_literals(self, text: str, *, secrets: bool) -> str:
        for literal in self._literals:
            if literal.placeholder.endswith("<secret>") is secrets:
                text = self._count(literal.placeholder, literal.hide(text))
        text = self._hide_escaped(text, secrets=secrets)
        flat = squeezed(text) if "\n" in text or "\\n" in text else ""
        for wrapped in self._wrapped:
            if flat and (wrapped.placeholder == "<secret>") is secrets:
                text = self._count(wrapped.placeholder, wrapped.hide(text, flat))
        return text

    def _hide_escaped(self, text: str, *, secrets: bool) -> str:
        """What stands there in escapes that no list of spellings has."""
        meant, number = meanings(text), 0
        while number < len(meant):
            places = [
                secret_patterns.Place(
                    *meant[number].place(*span), literal.placeholder.removeprefix("\\1")
                )
                for literal in self._literals
                if literal.placeholder.endswith("<secret>") is secrets
                for span in literal.places(meant[number].text)
            ]
            if places:
                text = self._replaced(text, places)
                meant = meanings(text)
            number += 1
        return text

    def _hide_places(
        self, text: str, find: Callable[[str], Iterator[secret_patterns.Place]]
    ) -> str:
        return self._replaced(text, find(text))

    def _replaced(self, text: str, places: Iterable[secret_patterns.Place]) -> str:
        pieces, end = [], 0
        for place in sorted(places, key=lambda found: found.start):
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
        return _PLACEHOLDER.sub(lambda found: found[1].replace("-", "_"), hidden)

    def _mapping(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, entry in value.items():
            told = isinstance(key, str) and key.isupper() and says_secret(key)
            told = told and isinstance(entry, str) and not is_switch(entry)
            name = self.text(key) if isinstance(key, str) else key
            while name in found:
                name = f"{name}+"
            if told and entry not in ("", "<secret>"):
                self.counts["secret"] += 1
                entry = "<secret>"
            found[name] = self.json(entry)
        return found

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

    def _count(self, placeholder: str, found: tuple[str, int]) -> str:
        text, times = found
        kind = _PLACEHOLDER.findall(placeholder)[-1]
        if times and kind != "site-packages":  # a shorter path, nothing private
            self.counts[kind] += times
        return text
