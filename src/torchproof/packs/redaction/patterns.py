"""Patterns of secrets, e-mail addresses and IP addresses, as rules."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

from torchproof.packs.redaction.common_words import is_common, says_secret

SECRET = "<secret>"


@dataclass(frozen=True)
class Rule:
    """Replaces matches of a pattern by a template, or by what a function returns.

    `kind` is what the user is told about: a secret, a user name. Without `value` in a
    text, nothing matches.
    """

    kind: str
    pattern: str | re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]
    value: str = ""

    def apply(self, text: str) -> tuple[str, int]:
        """The text, and how often something was replaced."""
        count = 0

        def hide(match: re.Match[str]) -> str:
            nonlocal count
            new = self.replacement
            new = match.expand(new) if isinstance(new, str) else new(match)
            count += new != match[0]
            return new

        if self.value not in text:
            return text, 0
        return re.sub(self.pattern, hide, text), count


def word(text: str) -> str:
    """The pattern of a whole word; `_` separates words, and so does an escape `\\n`."""
    return rf"(?:(?<![A-Za-z0-9\\])|(?<=\\[nrt])){text}(?![A-Za-z0-9])"


def _hide_value(match: re.Match[str]) -> str:
    """Hides the last group, if it is a value that could be a secret."""
    *before, value = match.groups()
    if is_common(value) or _TRIVIAL.fullmatch(value):
        return match[0]
    return "".join(before) + SECRET


def _hide_variable(match: re.Match[str]) -> str:
    return _hide_value(match) if says_secret(match[1]) else match[0]


_TRIVIAL = re.compile(r"[\d.]+|true|false|yes|no|on|off|none|null", re.I)
_SIGNS = r"[\w.~+/=-]"
_SAYS_KEY = (
    r"(?i:password|passwd|passphrase|secret[_-]?key|secret|api[_-]?key|"
    r"access[_-]?key(?:[_-]id)?|private[_-]?key|client[_-]?secret|"
    r"(?:auth|access|refresh|api|hf|bearer|session)[_-]?token)"
)
# A quoted value after a word such as password; in source too, which still parses.
QUOTED = Rule(
    "secret",
    rf"""({_SAYS_KEY}\\*["']?\s*[:=]\s*\\*["'])([^"'\\\s<>{{}}]{{4,}})""",
    _hide_value,
)
SECRETS = (
    Rule(
        "secret",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
        r"(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        SECRET,
    ),
    Rule(
        "secret",
        word(
            r"(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|nvapi-|xox[a-z]-|xapp-|AIza"
            r"|ya29\.|pypi-AgE|npm_|AKIA|ASIA)(?=[\w-]*\d)[\w-]{16,}"
        ),
        SECRET,
    ),
    Rule("secret", r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", SECRET),
    Rule(
        "secret",
        rf"(?i:bearer\s+)(?:(?={_SIGNS}*\d){_SIGNS}{{8,}}|{_SIGNS}{{20,}})",
        f"Bearer {SECRET}",
    ),
    Rule(
        "secret",
        r"(?i:(authorization[\"']?\s*[:=]\s*[\"']?(?:basic|token|digest)\s+))"
        r"[^\s\"'<]+",
        rf"\1{SECRET}",
    ),
    Rule(
        "secret",
        r"://(?!<)[^\s/@:\"'<>]*:(?!<secret>)[^\s/@\"'<>]+@",
        f"://<user>:{SECRET}@",
    ),
    Rule("secret", r"://[^\s/@:\"'<>]{12,}@", f"://{SECRET}@"),
    QUOTED,
    # Keys have letters and a digit; `key=self.key` is not hidden.
    Rule(
        "secret",
        rf"({_SAYS_KEY}(?:\s*[:=]\s*|\s+))"
        r"((?=[\w+/=-]*\d)(?=[\w+/=-]*[a-zA-Z])[\w+/=-]{8,})(?![\w.(\[])",
        _hide_value,
    ),
    Rule(
        "secret",
        r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]+|PASSWORD|SECRET|TOKEN)"
        r"(=|['\"]: ?['\"])([^\s\"',;<>]+)",
        _hide_variable,
    ),
)

# Of detect-secrets, what the patterns above and below find more of. The last four look
# for a word such as key before any 44 characters, and find torch's cache keys.
_COVERED = {
    "BasicAuthDetector",
    "IPPublicDetector",
    "JwtTokenDetector",
    "PrivateKeyDetector",
    "CloudantDetector",
    "IbmCloudIamDetector",
    "IbmCosHmacDetector",
    "SoftlayerDetector",
}


@functools.cache
def vendor_rules() -> tuple[Rule, ...]:
    """The token formats that detect-secrets knows; none if it is not installed."""
    try:
        from detect_secrets.core.plugins import util
    except ImportError:
        return ()
    plugins = util.get_mapping_from_secret_type_to_class().values()
    return tuple(
        Rule("secret", pattern, _hide_token)
        for plugin in plugins
        if plugin.__name__ not in _COVERED
        for pattern in getattr(plugin, "denylist", ())
    )


def _hide_token(match: re.Match[str]) -> str:
    """A match may contain the quotes around a token."""
    return re.sub(r"[\w+/=.:-]{10,}", SECRET, match[0])


# -- paths and addresses ---------------------------------------------------------------

SITE_PACKAGES = Rule(
    "site-packages",
    r"(?:(?<![\w.~>-])|(?<=\\[nrt])|(?<=-[ILB]))"
    r"(?:/[\w.+~@-]+)+?/(?:site|dist)-packages(?=/)",
    "<site-packages>",
)
# Directories of any user.
PEOPLE = (
    Rule("user", r"(/(?:home|Users)/)(?![<{$%])[\w.+~@-]*[\w+~@-]", r"\1<user>"),
    Rule("user", r"(/(?:torchinductor_|pytest-of-))(?!<)[\w.-]*\w", r"\1<user>"),
)
# `GB101@model.py` and `x@w.to(device)` are no addresses.
EMAIL = Rule(
    "email",
    r"(?:(?<![\w.+%\\-])|(?<=\\[nrt]))(?!git@git)[\w.+%-]*[\w+%-]@"
    r"(?:[A-Za-z0-9-]+\.)+(?!py\b)(?:[a-z]{2}|com|org|net|edu|gov|mil|int|info|biz|dev"
    r"|app|cloud|tech|local|lan|corp|internal|company|name|xyz|online)(?![\w(\[-])",
    "<email>",
)
_VERSION = re.compile(
    r"(?i)(?:(?:version|driver|cudnn|[>=~]=)\W{0,3}|nvidia-[\w-]+\s+|\.so\.)$"
)


def _hide_address(match: re.Match[str]) -> str:
    """Hides the address of a machine, but no loopback address and no version."""
    before = match.string[max(0, match.start() - 48) : match.start()]
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:
        return match[0]
    is_public = not (address.is_loopback or address.is_unspecified)
    return "<address>" if is_public and not _VERSION.search(before) else match[0]


ADDRESS = Rule(
    "address",
    r"(?:(?<![\w.:\\-])|(?<=\\[nrt]))"
    r"(?:(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)"
    r"|(?:[0-9A-Fa-f]{0,4}:){3,7}[0-9A-Fa-f]{1,4}(?![\w:]))",
    _hide_address,
)
