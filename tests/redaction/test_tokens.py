"""Tokens of every family, in the files they stand in, and what only looks like one."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import subprocess
import sys
import uuid

import pytest

from torchproof.packs.redaction import secret_patterns
from torchproof.packs.redaction.machine import PrivateValues
from torchproof.packs.redaction.redactor import Redactor

MIXED = "aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5zA7bC9dE1fG3hI5jK7lM9nO1pQ3r"
LOWER, DIGITS, HEX = MIXED.lower(), "1234567890" * 4, "0123456789abcdef" * 4
# What torchproof finds by itself, without any other package.
OWN = {
    "hugging face": f"hf_{MIXED[:34]}",
    "openai project": f"sk-proj-{MIXED[:48]}",
    "anthropic": f"sk-ant-api03-{MIXED[:60]}",
    "github classic": f"ghp_{MIXED[:36]}",
    "github oauth": f"gho_{MIXED[:36]}",
    "github fine": f"github_pat_{MIXED[:22]}_{MIXED[:40]}",
    "gitlab": f"glpat-{MIXED[:20]}",
    "aws key id": "AKIAIOSFODNN7EXAMPLE",
    "aws session id": "ASIAIOSFODNN7EXAMPLE",
    "slack bot": f"xoxb-{DIGITS[:12]}-{DIGITS[:12]}-{MIXED[:24]}",
    "slack app": f"xapp-1-{MIXED[:40]}",
    "google api": f"AIza{MIXED[:35]}",
    "google oauth": f"ya29.{MIXED[:60]}",
    "nvidia": f"nvapi-{MIXED[:60]}",
    "pypi": f"pypi-AgEIcHlwaS5vcmc{MIXED}{MIXED[:20]}",
    "npm": f"npm_{MIXED[:36]}",
    "sendgrid": f"SG.{MIXED[:22]}.{MIXED[:43]}",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
}
# What detect-secrets knows beside.
VENDORS = {
    "aws other": "ABIAIOSFODNN7EXAMPLE",
    "azure storage": f"AccountKey={(MIXED + MIXED)[:86]}==",
    "discord": f"M{MIXED[:23]}.{MIXED[:6]}.{MIXED[:27]}",
    "gitlab runner": f"glrt-{MIXED[:20]}",
    "gitlab trigger": f"glptt-{MIXED[:40]}",
    "mailchimp": f"{HEX[:32]}-us12",
    "slack webhook": f"https://hooks.slack.com/services/T{DIGITS[:8]}/B{DIGITS[:8]}/"
    f"{MIXED[:24]}",
    "square": f"sq0csp-{MIXED[:43]}",
    "stripe": f"sk_live_{MIXED[:24]}",
    "stripe restricted": f"rk_live_{MIXED[:24]}",
    "telegram": f"{DIGITS[:9]}:{MIXED[:35]}",
    "twilio account": f"AC{HEX[:32]}",
    "twilio key": f"SK{HEX[:32]}",
}
FILES = {
    "alone": "{}",
    "python": "client = Client('{}')  # by hand",
    "python call": 'login(token="{}")',
    "json": '{{"settings": {{"value": "{}", "n": 3}}}}',
    "yaml": "service:\n  value: {}\n  retries: 3\n",
    "env": "export VALUE={}\nDEBUG=1\n",
    "ini": "[remote]\nvalue = {}\n",
    "log": "2026-01-02 12:00:00 INFO sent {} to the host",
    "header": "curl -H 'X-Key: {}' x",
    "escaped": '{{\\"value\\": \\"{}\\"}}',
}


def secret_of(token: str) -> str:
    """The part of a token that must not survive."""
    return token.rstrip("=")[-16:]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("family", OWN)
def test_own_families_in_every_file(family: str, file: str) -> None:
    token = OWN[family]
    redactor = Redactor(PrivateValues())
    hidden = redactor.text(FILES[file].format(token))
    assert secret_of(token) not in hidden and "<secret>" in hidden
    assert redactor.counts["secret"] == 1


@pytest.mark.parametrize("file", [file for file in FILES if file != "escaped"])
@pytest.mark.parametrize("family", VENDORS)
def test_families_of_detect_secrets(family: str, file: str) -> None:
    token = VENDORS[family]
    hidden = Redactor(PrivateValues()).text(FILES[file].format(token))
    assert secret_of(token) not in hidden and "<secret>" in hidden


@pytest.mark.parametrize("family", [*OWN, *VENDORS])
def test_files_still_parse(family: str) -> None:
    token = {**OWN, **VENDORS}[family]
    redactor = Redactor(PrivateValues())
    plain = {"a": [token, 1], "b": f"x {token} y"}
    text = json.dumps(plain)
    assert set(json.loads(redactor.text(text))) == {"a", "b"}
    ast.parse(redactor.source(f"x = {token!r}\ny = 1\n"))
    assert secret_of(token) not in str(redactor.json(plain))


def test_a_token_that_has_to_stand_alone() -> None:
    token = f"AKC{MIXED[:60]}"  # of Artifactory
    for text in (f'"{token}"', f"x={token} y", f"x: {token}\n"):
        hidden = Redactor(PrivateValues()).text(text)
        assert hidden == text.replace(token, "<secret>")


PEM = (
    "-----BEGIN {0}PRIVATE KEY-----\n"
    + "\n".join([base64.b64encode(bytes(range(n, n + 48))).decode() for n in range(9)])
    + "\n-----END {0}PRIVATE KEY-----"
)


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ", "DSA "])
def test_private_keys_go_with_all_their_lines(kind: str) -> None:
    key = PEM.format(kind)
    for text in (
        f"a\n{key}\nb",
        json.dumps({"key": key}),
        f"key: |\n{key}\n".replace("\n", "\n  "),
        repr(key),
        key[:-40] + "\n",  # cut off
    ):
        hidden = Redactor(PrivateValues()).text(text)
        assert "<secret>" in hidden
        assert not [line for line in key.splitlines()[1:-1] if line in hidden]
    assert Redactor(PrivateValues()).text(f"a\n{key}\nb") == "a\n<secret>\nb"


ADDRESSES = {
    "https://ann:hush-hush1@git.test/x": "https://<user>:<secret>@git.test/x",
    "postgresql+psycopg://ann:hush@db:5432/x": (
        "postgresql+psycopg://<user>:<secret>@db:5432/x"
    ),
    "redis://:hush@cache:6379/0": "redis://<user>:<secret>@cache:6379/0",
    f"https://{MIXED[:20]}@git.test/x": "https://<secret>@git.test/x",
    "https://git.test/x": "https://git.test/x",
    "https://git.test:8080/x@y": "https://git.test:8080/x@y",
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_passwords_in_addresses(text: str) -> None:
    assert Redactor(PrivateValues()).text(text) == ADDRESSES[text]


ASSIGNED = {
    "db_password = 'correct-horse'": "db_password = '<secret>'",
    '"client_secret": "aa11bb22cc"': '"client_secret": "<secret>"',
    "api_key: 0a1b2c3d4e5f": "api_key: <secret>",
    "DATABASE_PASSWORD=x9y8z7": "DATABASE_PASSWORD=<secret>",
    "export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG": (
        "export AWS_SECRET_ACCESS_KEY=<secret>"
    ),
    "Authorization: Basic YW5uOmh1c2g=": "Authorization: Basic <secret>",
    "'authorization': 'Token abc123'": "'authorization': 'Token <secret>'",
}


@pytest.mark.parametrize("text", ASSIGNED)
def test_values_behind_a_word_that_says_secret(text: str) -> None:
    assert Redactor(PrivateValues()).text(text) == ASSIGNED[text]


ME = PrivateValues(
    names=("zaphod",),
    hosts=("heart-of-gold.betel.test",),
    homes=("/home/zaphod",),
    projects=("/home/zaphod/ship/model",),
    temporary=("/scratch/zaphod",),
)
PLACES = {
    "/home/zaphod/ship/model/net.py": "<project>/net.py",
    "/home/zaphod/notes.txt": "<home>/notes.txt",
    "file:///home/zaphod/x": "file://<home>/x",
    "PYTHONPATH=/home/zaphod/a:/home/zaphod/b": "PYTHONPATH=<home>/a:<home>/b",
    "-L/home/zaphod/lib": "-L<home>/lib",
    "/scratch/zaphod/tmp1": "<tmp>/tmp1",
    "/Users/trillian/x": "/Users/<user>/x",
    "/tmp/torchinductor_zaphod/ab": "/tmp/torchinductor_<user>/ab",
    "ZAPHOD and Zaphod": "<user> and <user>",
    "ssh zaphod@heart-of-gold": "ssh <user>@<host>",
    "rank 0 on heart-of-gold.betel.test": "rank 0 on <host>",
    "zaphods xzaphod": "zaphods xzaphod",
}


@pytest.mark.parametrize("text", PLACES)
def test_names_of_the_user_and_the_host(text: str) -> None:
    assert Redactor(ME).text(text) == PLACES[text]


KEPT = {
    "git hash": "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "sha256": f"sha256 {hashlib.sha256(b'x').hexdigest()}",
    "uuid": f"run {uuid.UUID(int=2**100 + 12345)}",
    "cache key": "key: fxyz4kqxgrcm2v6ynrvb5q4e3qkzjw2b6ic7dzgq5nqaxgsjpbqz",
    "cache key in base64": "cache_key = '" + base64.b64encode(bytes(32)).decode() + "'",
    "tensor": base64.b64encode(bytes(range(256)) * 4).decode(),
    "floats": " ".join(str(n / 7) for n in range(40)),
    "kernel": "triton_poi_fused_add_native_layer_norm_backward_123 = async_compile",
    "guard": "___check_obj_id(L['self']._modules['inner'], 140737488355328)",
    "address": "0x7f0123456789 at torch/csrc/autograd/engine.cpp:1234",
    "module": "transformer.h.11.mlp.c_proj.weight: torch.Size([3072, 768])",
    "tokens": "max_new_tokens=20, pad_token_id=50256, tokenizer(text)",
    "time": "2026-11-16T13:25:12.123456+00:00",
    "version": "torch==2.13.0+cpu nvidia-cublas-cu12==12.8.4.1",
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_no_token_stays(name: str) -> None:
    redactor = Redactor(ME)
    for text in (KEPT[name], json.dumps({"x": KEPT[name]}), f"x\n{KEPT[name]}\ny"):
        assert redactor.text(text) == text
    assert not redactor.counts


def test_without_detect_secrets_own_families_are_found_and_one_line_says_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Redactor.notes() == ()
    monkeypatch.setattr(secret_patterns, "vendor_patterns", lambda: ())
    redactor = Redactor(PrivateValues())
    for token in OWN.values():
        assert secret_of(token) not in redactor.text(f"x {token} y")
    (note,) = Redactor.notes()
    assert "detect-secrets" in note and "\n" not in note


def test_detect_secrets_that_cannot_be_imported_is_no_error() -> None:
    program = (
        "import sys; sys.modules['detect_secrets'] = None\n"
        "from torchproof.packs.redaction import Redactor, PrivateValues\n"
        "redactor = Redactor(PrivateValues())\n"
        f"print(redactor.text('x {OWN['github classic']}'), len(Redactor.notes()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "x <secret> 1\n"
