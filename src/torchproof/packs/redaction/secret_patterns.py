"""Patterns of secrets, email addresses and network addresses."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchproof.packs.redaction.common_words import is_common, says_secret

SECRET, USER, EMAIL, ADDRESS = "<secret>", "<user>", "<email>", "<address>"


@dataclass(frozen=True)
class Form:
    """A pattern; every text that matches it contains `mark`, in lower case."""

    mark: str
    pattern: re.Pattern[str]
    placeholder: str = SECRET


def _form(mark: str, pattern: str, placeholder: str = SECRET) -> Form:
    return Form(mark, re.compile(pattern), placeholder)


# The start of a word, also after an escape such as `\n`.
_FRESH = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-F]{2}))"
_SIGNS = r"[\w.~+/=-]"
_MIXED = rf"(?={_SIGNS}*\d){_SIGNS}"
FORMS: tuple[Form, ...] = (
    _form(
        "private key-----",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
        r"(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    ),
    _form("hf_", r"hf_[A-Za-z0-9]{16,}"),
    _form("sk-", rf"{_FRESH}sk-(?=[\w-]*\d)[A-Za-z0-9_-]{{16,}}"),
    *(_form(f"gh{kind}_", rf"gh{kind}_[A-Za-z0-9]{{20,}}") for kind in "pousr"),
    _form("github_pat_", r"github_pat_\w{20,}"),
    _form("glpat-", r"glpat-[\w-]{16,}"),
    _form("akia", rf"{_FRESH}AKIA[0-9A-Z]{{16}}(?![0-9A-Za-z])"),
    _form("asia", rf"{_FRESH}ASIA[0-9A-Z]{{16}}(?![0-9A-Za-z])"),
    _form("xox", r"xox[a-z]-[\w-]{10,}"),
    _form("xapp-", r"xapp-[\w-]{10,}"),
    _form("aiza", r"AIza[\w-]{30,}"),
    _form("ya29.", r"ya29\.[\w-]{20,}"),
    _form("nvapi-", r"nvapi-[\w-]{20,}"),
    _form("pypi-age", r"pypi-AgE[\w-]{20,}"),
    _form("npm_", r"npm_[A-Za-z0-9]{36}"),
    _form("sg.", r"SG\.[\w-]{20,}\.[\w-]{20,}"),
    _form("eyj", r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    _form(
        "bearer ",
        rf"(?i:bearer\s+)(?:{_MIXED}{{8,}}|{_SIGNS}{{20,}})",
        f"Bearer {SECRET}",
    ),
    _form(
        "authorization",
        r"(?i:(authorization[\"']?\s*[:=]\s*[\"']?(?:basic|token|digest)\s+))"
        r"[^\s\"'<]+",
        rf"\1{SECRET}",
    ),
    _form(
        "://",
        r"://(?!<)[^\s/@:\"'<>]*:(?!<secret>)[^\s/@\"'<>]+@",
        f"://{USER}:{SECRET}@",
    ),
    _form("://", r"://[^\s/@:\"'<>]{12,}@", f"://{SECRET}@"),
)

_SAYS_KEY = (
    r"(?:password|passwd|passphrase|secret[_-]?key|secret|api[_-]?key|"
    r"access[_-]?key(?:[_-]id)?|private[_-]?key|client[_-]?secret|"
    r"(?:auth|access|refresh|api|hf|bearer|session)[_-]?token)"
)
_KEY_WORD = re.compile(_SAYS_KEY, re.I)
_QUOTED = re.compile(
    rf"""(?i)({_SAYS_KEY}\\*["']?\s*[:=]\s*)"""
    r"""(\\*["'])([^"'\\\s<>{}]{4,})(\\*["'])"""
)
# Keys have letters and a digit; `key=self.key` is not redacted.
_BARE = re.compile(
    rf"""(?i)({_SAYS_KEY}(?:\s*[:=]\s*|\s+))"""
    r"""(?=[\w+/=-]*\d)(?=[\w+/=-]*[a-z])([\w+/=-]{8,})(?![\w.(\[])"""
)
_VARIABLE = re.compile(
    r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]+|PASSWORD|SECRET|TOKEN)"
    r"(=|['\"]: ?['\"])([^\s\"',;<>]+)"
)
_TRIVIAL = re.compile(r"[\d.]+|true|false|yes|no|on|off|none|null", re.I)

_DOMAIN = re.compile(r"@((?:[A-Za-z0-9-]+\.)+([a-z]{2,}))(?![\w(\[-])")
_LOCAL = re.compile(r"[\w.+%-]*[\w+%-]$")
_ENDING_WORDS = """
com org net edu gov mil int info biz dev app cloud tech local lan corp internal intra
company email name xyz online site
"""
_ENDINGS = frozenset(_ENDING_WORDS.split())
# The number before the first dot is checked last: the search for a dot is fast.
_NUMBERS = re.compile(r"\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\w-]|\.\d)")
_NUMBER_BEFORE = re.compile(r"(?:(?<![\w.-])|(?<=\\[nrt]))\d{1,3}$")
_VERSION = re.compile(
    r"(?i)(?:(?:version|driver|cudnn|[>=~]=)\W{0,3}|nvidia-[\w-]+\s+|\.so\.)$"
)
_GROUPS = re.compile(r":[0-9A-Fa-f:]{4,}(?![\w:])")
_GROUP_BEFORE = re.compile(r"(?<![\w:])[0-9A-Fa-f]{1,4}$")
_HARDWARE = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", re.I)
_PUBLIC = frozenset({"git@github.com", "git@gitlab.com"})


@dataclass(frozen=True)
class Place:
    """A part of a text that a placeholder replaces."""

    start: int
    end: int
    placeholder: str


# Of detect-secrets, what the patterns above find more of. The last four look for a word
# such as key before any 44 characters, which takes torch's cache keys for secrets.
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
_SHORTEST_GROUP = 16  # shorter groups are prefixes such as `ghp`


@functools.cache
def vendor_patterns() -> tuple[re.Pattern[str], ...]:
    """The token formats that detect-secrets knows; none if it is not installed."""
    try:
        from detect_secrets.core.plugins import util
    except ImportError:
        return ()
    plugins = util.get_mapping_from_secret_type_to_class().values()
    return tuple(
        pattern
        for plugin in plugins
        if plugin.__name__ not in _COVERED
        for pattern in getattr(plugin, "denylist", ())
    )


def vendor_tokens(text: str) -> Iterator[Place]:
    """The tokens in formats of detect-secrets, without the words around them."""
    for pattern in vendor_patterns():
        for match in pattern.finditer(text):
            groups = range(1, pattern.groups + 1)
            long = [g for g in groups if len(match[g] or "") >= _SHORTEST_GROUP]
            start, end = match.span(long[0] if long else 0)
            token = text[start:end].strip("\"'=: \t\r\n")
            start = text.index(token, start)
            yield Place(start, start + len(token), SECRET)


def emails(text: str) -> Iterator[Place]:
    for domain in _DOMAIN.finditer(text):
        before = text[max(0, domain.start() - 64) : domain.start()]
        local_part = _LOCAL.search(before)
        # `.py` is a file name and no country: GB101@model.py
        country = len(domain[2]) == 2 and domain[2] != "py"
        is_domain = country or domain[2] in _ENDINGS
        if local_part and is_domain and local_part[0] + domain[0] not in _PUBLIC:
            # The letter of an escape `\n` before an address is not part of it.
            start = domain.start() - len(local_part[0])
            start += text[max(0, start - 1)] == "\\" and len(local_part[0]) > 1
            yield Place(start, domain.end(), EMAIL)


def addresses(text: str) -> Iterator[Place]:
    """Network addresses, but not version numbers with four parts."""
    for match in _NUMBERS.finditer(text):
        before = text[max(0, match.start() - 48) : match.start()]
        first = _NUMBER_BEFORE.search(before)
        if first is None or _VERSION.search(before[: first.start()]):
            continue
        if is_machine(first[0] + match[0]):
            start = match.start() - len(first[0])
            yield Place(start, match.end(), ADDRESS)
    for match in _GROUPS.finditer(text):
        first = _GROUP_BEFORE.search(text[max(0, match.start() - 6) : match.start()])
        start = match.start() - len(first[0]) if first else match.start()
        if first and match[0].count(":") > 2 and is_machine(text[start : match.end()]):
            yield Place(start, match.end(), ADDRESS)


def is_machine(text: str) -> bool:
    """Whether it is the address of a machine, not a loopback or wildcard address."""
    if _HARDWARE.fullmatch(text):
        return True
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    is_long = text.count(":") in (0, 7) or len(text) > 8
    return is_long and not (address.is_loopback or address.is_unspecified)


def quoted_values(text: str) -> tuple[str, int]:
    """Hide quoted values after a word such as password."""
    count = 0

    def hide(match: re.Match[str]) -> str:
        nonlocal count
        if is_common(match[3]):
            return match[0]
        count += 1
        return f"{match[1]}{match[2]}{SECRET}{match[4]}"

    return _QUOTED.sub(hide, text), count


def assigned_values(text: str) -> tuple[str, int]:
    """Hide values after a word such as password, and values of secret variables."""
    text, count = _behind_key_words(text)

    def hide(match: re.Match[str]) -> str:
        nonlocal count
        if not says_secret(match[1]) or _TRIVIAL.fullmatch(match[3]):
            return match[0]
        count += 1
        return f"{match[1]}{match[2]}{SECRET}"

    return _VARIABLE.sub(hide, text), count


def _behind_key_words(text: str) -> tuple[str, int]:
    lines, count = text.split("\n"), 0
    for number, line in enumerate(lines):
        if _KEY_WORD.search(line):
            line, quoted = quoted_values(line)
            lines[number], bare = _BARE.subn(rf"\1{SECRET}", line)
            count += quoted + bare
    return "\n".join(lines), count
