"""Common words, which are not redacted even if an account or a host has that name."""

from __future__ import annotations

import builtins
import keyword
import re
import sys

# Names of accounts and hosts that name nobody, and words that programs are full of.
_PLAIN = """
account admin agent alpha app array attention base batch beta block build cache center
class client cloud cluster code compile compute config conv core cuda data debian debug
decoder default demo deploy desktop dev developer device docker edge email encoder
engine error event example export fedora forward frame function gamma generic gnome
gradient graph group guard guest head hidden home host image index input jenkins job
kernel label lambda layer learn linear linux local localhost localuser login loss main
manager manual mask master matrix memory mini model module name network node nobody norm
numpy nvidia object oem optim output owner pack param password patch path pool process
production profile program project proof public python query rank recipe relu remote
request research root rotary rule run runner sample scale school scratch script search
secret secrets seed sequence server service session shape shared simple small softmax
source space staff start state step storage store stream student system target task team
temp tensor test tester testing text theta thread tiny tmp token tokens torch torchproof
trace track train trainer transformer triton tune ubuntu unit unknown upload user
username utils vagrant value vector version vision visitor wave weight work worker
workspace world x11
"""
COMMON = (
    frozenset(_PLAIN.split())
    | {word.lower() for word in keyword.kwlist}
    | {word.lower() for word in dir(builtins)}
    | {word.lower() for word in sys.stdlib_module_names}
)
# Shorter values occur in numbers and identifiers by chance.
SHORT = 4

_SECRET_WORDS = (
    r"\w*TOKEN|\w*SECRETS?|\w*PASS(?:WD|WORD)?|PASSPHRASE|PASSCODE|PIN|AUTH"
    r"|AUTHORIZATION|CREDENTIAL\w*|CREDS?|COOKIES?|SESSION|SESSIONID|DSN|JWT|BEARER"
    r"|WEBHOOK|SALT|SIGNATURE|PRIVATE|NETRC|LICENSE|PAT|\w*KEY|KEYS|CONN|CONNECTION"
    r"|CONNSTR|PWD"
)
_SAYS_SECRET = re.compile(rf"(?:^|[_.-])(?:{_SECRET_WORDS})(?:$|[_.-]|\d)", re.I)
_SAYS_PLAIN = re.compile(
    r"^(OLD)?PWD$|(^|_)(PAD|EOS|BOS|UNK|SEP|CLS|MASK|IMAGE|MAX|NUM)_TOKEN|CACHE_KEY|"
    r"^XDG_SESSION_(ID|TYPE|CLASS|DESKTOP)|^DESKTOP_SESSION|KEYMAP|KEYBOARD",
    re.I,
)
_SWITCH = re.compile(r"\d|true|false|yes|no|on|off|none|null", re.I)


def is_common(word: str) -> bool:
    return len(word) < 2 or word.lower() in COMMON


def says_secret(variable: str) -> bool:
    """Whether the name of a variable indicates that its value is secret."""
    return bool(_SAYS_SECRET.search(variable)) and not _SAYS_PLAIN.search(variable)


def is_switch(value: str) -> bool:
    """Whether a value is a switch such as on or off, which is never a secret."""
    return _SWITCH.fullmatch(value) is not None
