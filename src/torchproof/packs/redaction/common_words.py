"""Common words, which are not redacted even if an account or a host has that name."""

from __future__ import annotations

import builtins
import keyword
import re
import sys

# Frequent names of accounts and directories, and frequent words in compiler logs.
_PLAIN = """
account activation activations adam address admin agent alpha app args array attention
attn autograd axis backend backward base basic batch bearer bench beta bias block bool
buffer build cache call centos channel check checkpoint class client code compile
compiled compiler config context conv conv2d core counts create cuda cudnn data
dataset debian debug decode decoder default demo desktop develop developer device dim
dims disabled docker driver dtype dynamo eager edge email embedding enabled encode
encoder engine english error eval event example export fedora file finding fix float
forward frame frames full function gamma gelu generate generic gnome grad gradient
graph graphs group guard guards guest head heads hidden home host index inductor infer
inference init input inputs int internal item items jenkins job kernel key keys kwargs
label labels language large latest layer layers learn learning lib line linear lines
linux list loader local localhost localuser log login logits logs long loop loss lower
main manager manual mask master matrix max mean memory method min mini minimal mix
mixer mlp mode model models module modules name names nano nested network neural new
news nobody node nodes norm normal null numpy nvidia object oem ops optim optimizer
option other output outputs owner pack package packages param parameter parameters
pass password patch path performance pipeline pool probe process processes production
profile program project proof public pull push python pytorch query quick random range
rank read recipe regional release relu replay repro request research reserve residual
result results root rotary rule run runner runs sample samples scalar scale schedule
school scratch script search secret secrets self sequence server service session setup
shape shapes shared show simple single site size small snapshot softmax source space
spec stack staff start state static step storage store strategy stream stride student
student1 submodule sum super support switch system target task tensor tensors test
tester testing tests text text_encoder theta thread threads tiny tmp token tokenizer
tokens tool tools torch torchinductor torchproof trace tracer train trainer training
transform transformer transformers triton tty tune tuple type ubuntu unit unknown
update upper user username users utils vagrant value values vector version view
virtual vision visitor visual wave wayland weight weights window work worker workers
workspace world write x11 xformers zero
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
    "TOKEN|SECRETS?|PASS|PASSWD|PASSWORD|PASSPHRASE|PASSCODE|PIN|AUTH|AUTHORIZATION|"
    "CREDENTIALS?|CREDS?|COOKIES?|SESSION|SESSIONID|DSN|JWT|BEARER|WEBHOOK|SALT|"
    "SIGNATURE|PRIVATE|NETRC|LICENSE|PAT|KEY|KEYS|APIKEY|\\w*KEY|\\w+PASS|\\w+PASSWORD|"
    "\\w+PASSWD|\\w*SECRET|\\w*TOKEN|CONN|CONNECTION|CONNSTR|CREDENTIAL\\w*|PWD"
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
