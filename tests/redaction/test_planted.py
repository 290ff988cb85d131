"""Whatever is planted in an environment and in what a pack holds does not survive."""

import ast
import base64
import json
import string
from urllib.parse import quote

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchproof.packs.redaction.common_words import is_common
from torchproof.packs.redaction.redactor import Redactor

LETTERS = string.ascii_lowercase
names = st.text(LETTERS, min_size=5, max_size=12).filter(lambda n: not is_common(n))
SIGNS = string.ascii_letters + string.digits + "-_./+=:@#$%&*!?,;~^ \"'\\\u00e9\u4e2d"
secrets = st.text(SIGNS, min_size=10, max_size=40).map(str.strip)
# What a placeholder or the text around is made of is no secret.
secrets = secrets.filter(
    lambda text: len(text) > 9 and len(set(text)) > 4 and not is_common(text)
)
roots = st.sampled_from(["/home", "/Users", "/srv/people", "/mnt/nfs/home"])
LOGGED = """
torch._dynamo.exc.Unsupported: graph break at line 12 (GB0170) | [0/1] x.size(1) == 128
Tensor(2, 3) 0x7f01 float32 'self' <module> return -> {} 100% a@b
"""
words = st.lists(
    st.sampled_from(LOGGED.split()),
    max_size=12,
).map(" ".join)

CONTAINERS = {
    "log": "{before}\n[0/1] {value} {after}\n",
    "variable": "API_TOKEN={value}\n{before}",
    "comment": "x = 1  # {value}\n",
    "traceback": 'Traceback:\n  File "{value}/x.py", line 3, in f\n    {before}\n',
    "colour": "\x1b[31m{value}\x1b[0m {after}",
}
ENCODINGS = {
    "plain": str,
    "json": lambda text: json.dumps({"a": f"line\n{text}\nline"}),
    "json in json": lambda text: json.dumps(json.dumps(f"\n{text}\n")),
    "repr": lambda text: repr(f"\t{text}\n"),
    "url": lambda text: "https://x.test/?q=" + quote(text, safe=""),
}


@st.composite
def machines(draw):
    name, secret = draw(names), draw(secrets)
    home = f"{draw(roots)}/{name}"
    assume(name not in secret and secret not in home)
    return name, home, secret


@settings(max_examples=60, deadline=None)
@given(
    machines(),
    words,
    words,
    st.sampled_from(sorted(CONTAINERS)),
    st.sampled_from(sorted(ENCODINGS)),
)
def test_nothing_planted_survives(machine, before, after, container, encoding) -> None:
    name, home, secret = machine
    redactor = Redactor.here({"USER": name, "HOME": home, "A_SECRET": secret})
    encode = ENCODINGS[encoding]
    for value in (name, home, f"{home}/x y", secret):
        text = CONTAINERS[container].format(value=value, before=before, after=after)
        hidden = redactor.text(encode(text))
        for planted in (name, home, secret):
            assert planted not in hidden
            assert encode(planted).strip("\"'") not in hidden or encoding == "json"
            assert json.dumps(planted)[1:-1] not in hidden
            assert quote(planted, safe="") not in hidden
        assert name not in redactor.name(f"{name}.py")
        assert name not in json.dumps(redactor.json({value: [value]}))


@settings(max_examples=80, deadline=None)
@given(secrets, words, st.integers(1, 8), st.binary(max_size=5))
def test_encoded_and_wrapped_secrets_do_not_survive(secret, text, cut, lead) -> None:
    redactor = Redactor.here({"B_PASSWORD": secret})
    encoded = base64.b64encode(lead + secret.encode()).decode()
    # At either end a character also holds bits of what stands beside the secret.
    assert encoded[8:-4] not in redactor.text(f"{text} {encoded} {text}")
    for between in ("\n", "\\n", '"\n    "'):
        broken = f"{text} {secret[:cut]}{between}{secret[cut:]} {text}"
        hidden = redactor.text(broken)
        assert f"{secret[:cut]}{between}{secret[cut:]}" not in hidden


@settings(max_examples=60, deadline=None)
@given(machines())
def test_source_with_anything_planted_parses(machine) -> None:
    name, home, secret = machine
    redactor = Redactor.here({"USER": name, "HOME": home, "A_KEY": secret})
    source = (
        f"# {home}\n{name}_net = 1\nt = {secret!r}\n"
        f"def {name}(x):\n    '''{home}/x'''\n    return f'{{{name}_net}}'\n"
    )
    hidden = redactor.source(source)
    ast.parse(hidden)
    for planted in (name, home, secret, repr(secret)[1:-1]):
        assert planted not in hidden


@settings(max_examples=60, deadline=None)
@given(machines(), words, words)
def test_text_without_any_of_it_stays(machine, before, after) -> None:
    name, home, secret = machine
    text = f'{before}\n  File "/usr/lib/python3.11/ast.py", line 1\n{after}\n'
    assume(name not in text and secret not in text)
    redactor = Redactor.here({"USER": name, "HOME": home, "A_SECRET": secret})
    assert redactor.text(text) == text
    assert redactor.json({"x": [text, 1, None]}) == {"x": [text, 1, None]}
    assert redactor.bytes(text.encode()) == text.encode()
    assert not redactor.counts
