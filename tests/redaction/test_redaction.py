"""Redaction: known values and tokens are replaced, and nothing else changes."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import string

import pytest
from commands import python
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchproof.packs.redaction import patterns
from torchproof.packs.redaction.common_words import is_common
from torchproof.packs.redaction.machine import PrivateValues
from torchproof.packs.redaction.redactor import Redactor

KNOWN = PrivateValues(
    names=("alice", "Alice Smith", "root"),
    hosts=("gpu-box7.acme.org",),
    homes=("/home/alice",),
    projects=("/home/alice/plan9",),
    temporary=("/scratch/alice",),
    secrets=("v3ry/private+x", "w1th\\back"),
)

REDACTED = {
    'File "/home/alice/v/lib/python3.11/site-packages/torch/nn.py"': (
        'File "<site-packages>/torch/nn.py"'
    ),
    "/home/alice/plan9/net.py": "<project>/net.py",
    "/home/alice/.cache": "<home>/.cache",
    "PYTHONPATH=/home/alice/a:/home/alice/b": "PYTHONPATH=<home>/a:<home>/b",
    "/scratch/alice/tmp1": "<tmp>/tmp1",
    "/home/bert/x": "/home/<user>/x",
    "/Users/trillian/x": "/Users/<user>/x",
    r'"\n/home/alice/x\nalice"': r'"\n<home>/x\n<user>"',
    "file:///home/alice/x": "file://<home>/x",
    "/tmp/torchinductor_bert/x torchinductor_alice": (
        "/tmp/torchinductor_<user>/x torchinductor_<user>"
    ),
    "alice, Alice Smith, ALICE": "<user>, <user>, <user>",
    "alice@gpu-box7": "<user>@<host>",
    "gpu-box7.acme.org": "<host>",
    "https://x.test/v3ry/private+x": "https://x.test/<secret>",
    '{"DOOR_KEY": "x4217"}': '{"DOOR_KEY": "<secret>"}',
    r"login('w1th\\back') took w1th\back": "login('<secret>') took <secret>",
    "WANDB_API_KEY=abcd": "WANDB_API_KEY=<secret>",
    "password='hunter22'": "password='<secret>'",
    '"client_secret": "aa11bb22cc"': '"client_secret": "<secret>"',
    "--api-key abc12345678x": "--api-key <secret>",
    "export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG": (
        "export AWS_SECRET_ACCESS_KEY=<secret>"
    ),
    "Authorization: Bearer abcdefghijk1": "Authorization: Bearer <secret>",
    "Authorization: Basic YW5uOmh1c2g=": "Authorization: Basic <secret>",
    "x\n-----BEGIN PRIVATE KEY-----\nMIIabcdefghijk (cut off)": "x\n<secret>",
    "see carl.b+x@corp.example.org.": "see <email>.",
    "from 10.1.2.3:29500": "from <address>:29500",
    "fe80::1ff:fe23:4567:890a": "<address>",
    "https://me:hush@host/x": "https://<user>:<secret>@host/x",
    "redis://:hush@cache:6379/0": "redis://<user>:<secret>@cache:6379/0",
    "https://aB3dE5fG7hI9jK1lM3nO@git.test/x": "https://<secret>@git.test/x",
}

UNCHANGED = (
    "malice palace root rooted alices",
    "/rootfs /mnt/root/x /usr/lib/python3.11/ast.py",
    "4217 rows, da1b2c, EOS_TOKEN=50256, cache_key: abc123456789x",
    "x@self.weight + q@k.T, a @ b.com_plex, y@w.to(device)",
    "nvidia-cudnn-cu12==9.1.0.70, cuDNN version: 9.1.0.70, 127.0.0.1, libx.so.1.2.3.4",
    "V1115 00:15:27.123000 12 torch/_dynamo/guards.py:9] [0/1] std::vector<at::Tensor>",
    "token = self.token; api_key=settings.api_key; task-abcdefghijklmnop1234",
    "torch.compile(model, mode='max-autotune')  # sk-short",
    "GB101@model.py:42, --compile KEY=VALUE, 'secret': 'secrets', bearer authorization",
    "'/site-packages/' in path, test_torchinductor_dynamic_shapes.py",
    "@torch.compile\ndef f(x): return x",
    "https://git.test:8080/x@y",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    f"sha256 {hashlib.sha256(b'x').hexdigest()}",
    "key: fxyz4kqxgrcm2v6ynrvb5q4e3qkzjw2b6ic7dzgq5nqaxgsjpbqz",
    "cache_key = '" + base64.b64encode(bytes(32)).decode() + "'",
    base64.b64encode(bytes(range(256)) * 4).decode(),
    "___check_obj_id(L['self']._modules['inner'], 140737488355328) 0x7f0123456789",
    "transformer.h.11.mlp.c_proj.weight, max_new_tokens=20, pad_token_id=50256",
)

MIXED = "aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5zA7bC9dE1fG3hI5jK7lM9nO1pQ3r"
DIGITS = "1234567890" * 4
TOKENS = {
    "hugging face": f"hf_{MIXED[:34]}",
    "openai": f"sk-proj-{MIXED[:48]}",
    "github": f"ghp_{MIXED[:36]}",
    "github, fine-grained": f"github_pat_{MIXED[:22]}_{MIXED[:40]}",
    "gitlab": f"glpat-{MIXED[:20]}",
    "aws key id": "AKIAIOSFODNN7EXAMPLE",
    "slack": f"xoxb-{DIGITS[:12]}-{DIGITS[:12]}-{MIXED[:24]}",
    "google": f"AIza{MIXED[:35]}",
    "nvidia": f"nvapi-{MIXED[:60]}",
    "pypi": f"pypi-AgEIcHlwaS5vcmc{MIXED}{MIXED[:20]}",
    "npm": f"npm_{MIXED[:36]}",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIabcdefghijklm\n-----END RSA"
    " PRIVATE KEY-----",
    # By detect-secrets: with a word before it, in groups, and whole.
    "azure storage": f"AccountKey={(MIXED + MIXED)[:86]}==",
    "stripe": f"sk_live_{MIXED[:24]}",
    "telegram": f"{DIGITS[:9]}:{MIXED[:35]}",
}
FILES = (
    "client = Client('{}')  # by hand",
    '{{"settings": {{"value": "{}", "n": 3}}}}',
    "export VALUE={}\nDEBUG=1\n",
)


def test_known_values_are_redacted() -> None:
    redactor = Redactor(KNOWN)
    hidden = {text: redactor.text(text) for text in REDACTED}
    assert hidden == REDACTED
    again = {text: redactor.text(text) for text in REDACTED.values()}
    assert again == {text: text for text in again}


def test_other_text_stays() -> None:
    redactor = Redactor(KNOWN)
    for text in UNCHANGED:
        for written in (text, json.dumps({"x": text})):
            assert redactor.text(written) == written
    assert not redactor.counts


def test_tokens_are_redacted_in_every_file() -> None:
    for family, token in TOKENS.items():
        end = token.rstrip("=-").splitlines()[-1][-16:]
        redactor = Redactor(PrivateValues())
        for number, file in enumerate(FILES, 1):
            assert end not in redactor.text(file.format(token)), (family, file)
            assert redactor.counts["secret"] >= number, family
        source = redactor.source(f"x = {token!r}\ny = 1\n")
        plain = redactor.json({"a": [token, 1], "b": f"x {token} y"})
        assert end not in f"{source} {plain}", family
        ast.parse(source)


def test_missing_detect_secrets_is_a_note() -> None:
    assert Redactor.notes() == ()
    program = (
        "import sys; sys.modules['detect_secrets'] = None\n"
        "from torchproof.packs.redaction import Redactor, PrivateValues\n"
        "redactor = Redactor(PrivateValues())\n"
        f"print(redactor.text('x {TOKENS['github']}'), len(Redactor.notes()))\n"
    )
    done = python(program)
    assert done.stdout == "x <secret> 1\n", done.stderr
    assert patterns.vendor_rules()


@pytest.mark.parametrize("name", ["root", "test"])
def test_common_name_is_redacted_only_in_homes(name: str) -> None:
    redactor = Redactor(PrivateValues(names=(name,), homes=(f"/home/{name}",)))
    plain = "import torch\ndef test(self): return a  # root"
    assert redactor.text(plain) == plain
    for text in (f"/home/{name}/x", f"/tmp/torchinductor_{name}/x"):
        hidden = redactor.text(text)
        assert hidden != text and f"/{name}/" not in hidden


KEY = ("12345678",)


def test_redacted_source_parses() -> None:
    source = (
        "# by alice, /home/alice/x\n"
        "alice_net = 12345678\n"
        'text = f"{alice_net} /home/alice/q" + "alice"\n'
        "api_key = 'abcdef123'\n"
        "y = alice_net@alice_net.T\n"
    )
    redactor = Redactor(PrivateValues(("alice",), (), ("/home/alice",), secrets=KEY))
    hidden = redactor.source(source)
    ast.parse(hidden)
    assert "user_net = 0" in hidden and "# by <user>, <home>/x" in hidden
    for value in ("alice", "12345678", "abcdef123"):
        assert value not in hidden
    clean = "import torch\n\n\ndef make():\n    return torch.nn.Linear(2, 2), [()]\n"
    assert redactor.source(clean) == clean


def test_json_is_redacted_with_keys_and_variables() -> None:
    redactor = Redactor(PrivateValues(names=("alice",), secrets=KEY))
    plain = {"alice": ["12345678", 3, None], "HF_TOKEN": "x", "code": "GB101"}
    hidden = {"<user>": ["<secret>", 3, None], "HF_TOKEN": "<secret>", "code": "GB101"}
    assert redactor.json(plain) == hidden
    assert redactor.counts == {"user": 1, "secret": 2}


def test_file_names_have_no_special_characters() -> None:
    assert Redactor(KNOWN).name("alice-net.py") == "user-net.py"
    assert Redactor(KNOWN).name("graph_0.py") == "graph_0.py"


def test_private_values_come_from_the_account_and_the_environment() -> None:
    environ = {"USER": "zaphod", "HOME": "/srv/people/zaphod", "S3_SECRET": "brox-4711"}
    environ |= {"http_proxy": "http://me:hush-hush@proxy", "TMPDIR": "/big/zaphod/t"}
    environ |= {"TORCH_BYPASS": "1", "SSH_AUTH_SOCK": "/tmp"}  # no secrets
    redactor = Redactor.here(environ, ["/opt/plans/heart"])
    text = (
        "zaphod /srv/people/zaphod/x /opt/plans/heart/x brox-4711 hush-hush /big/zaphod"
    )
    hidden = redactor.text(text)
    assert hidden == "<user> <home>/x <project>/x <secret> <secret> /big/<user>"
    assert os.getcwd() not in redactor.text(f"{os.getcwd()}/x")
    assert redactor.text(hidden) == hidden
    assert redactor.text("TORCH_BYPASS=1 in /tmp") == "TORCH_BYPASS=1 in /tmp"


# -- any machine -----------------------------------------------------------------------

names = st.text(string.ascii_lowercase, min_size=5, max_size=12)
names = names.filter(lambda name: not is_common(name))
secrets = st.text(string.ascii_letters + string.digits + "-_./+=:", min_size=10)
# Parts of a placeholder or of the text around are no secrets.
secrets = secrets.filter(lambda text: len(set(text)) > 4 and not is_common(text))
roots = st.sampled_from(["/home", "/Users", "/srv/people", "/mnt/nfs/home"])
WRITTEN = (
    "torch._dynamo.exc.Unsupported: graph break [0/1] {}\n",
    "API_TOKEN={}\nx.size(1) == 128",
    'Traceback:\n  File "{}/x.py", line 3, in f\n    return -> {{}}\n',
)


@settings(max_examples=25, deadline=None)
@given(names, secrets, roots)
def test_no_private_value_survives(name: str, secret: str, root: str) -> None:
    home = f"{root}/{name}"
    assume(name not in secret and secret not in home)
    redactor = Redactor.here({"USER": name, "HOME": home, "A_SECRET": secret})
    source = (
        f"# {home}\n{name}_net = 1\nt = {secret!r}\n"
        f"def {name}(x):\n    '''{home}/x'''\n    return f'{{{name}_net}}'\n"
    )
    hidden = [redactor.source(source)]
    ast.parse(hidden[0])
    for value in (name, home, f"{home}/x y", secret):
        plain = [text.format(value) for text in WRITTEN]
        hidden += [redactor.text(text) for text in (*plain, json.dumps(plain))]
        hidden.append(json.dumps(redactor.json({value: [value]})))
    for text in hidden:
        assert not [each for each in (name, home, secret) if each in text], text
