"""What is known is hidden wherever it stands, and nothing else is touched."""

import ast
import os
import random
import time

import pytest

from torchproof.packs.redaction.machine import PrivateValues
from torchproof.packs.redaction.redactor import Redactor

KNOWN = PrivateValues(
    names=("alice", "Alice Smith", "root"),
    hosts=("gpu-box7.acme.org",),
    homes=("/home/alice", "/root"),
    projects=("/home/alice/plan9",),
    secrets=(("MY_TOKEN", 'v3ry/priv ate+"x"'), ("DOOR_PIN", "4217")),
)

HIDDEN = {
    'File "/home/alice/v/lib/python3.11/site-packages/torch/nn.py"': (
        'File "<site-packages>/torch/nn.py"'
    ),
    "/home/alice/plan9/net.py": "<project>/net.py",
    "/home/alice/.cache": "<home>/.cache",
    "/home/bert/x": "/home/<user>/x",
    r'"\n/root/x\nalice"': r'"\n<home>/x\n<user>"',
    "-I/root/include": "-I<home>/include",
    "%2Fhome%2Falice%2Fx": "<home>%2Fx",
    r"\/home\/alice\/x": r"<home>\/x",
    "-home-alice-plan9": "<home>-plan9",
    "/home/al\n  ice/plan9/x": "<project>/x",
    "/tmp/torchinductor_bert/x torchinductor_alice torchinductor_root": (
        "/tmp/torchinductor_<user>/x torchinductor_<user> torchinductor_<user>"
    ),
    "\x1b[31malice\x1b[0m, Alice Smith": "\x1b[31m<user>\x1b[0m, <user>",
    "root@gpu-box7": "<user>@<host>",
    "gpu-box7.acme.org": "<host>",
    "v3ry/priv%20ate%2B%22x%22": "<secret>",
    "DOOR_PIN=4217": "DOOR_PIN=<secret>",
    '{"DOOR_PIN": "4217"}': '{"DOOR_PIN": "<secret>"}',
    "WANDB_API_KEY=abcd": "WANDB_API_KEY=<secret>",
    "password='hunter22'": "password='<secret>'",
    "--api-key abc12345678x": "--api-key <secret>",
    "see carl.b+x@corp.example.org.": "see <email>.",
    "from 10.1.2.3:29500": "from <address>:29500",
    "fe80::1ff:fe23:4567:890a": "<address>",
    "aa:bb:cc:dd:ee:f0": "<address>",
    "https://me:hush@host/x": "https://<user>:<secret>@host/x",
    "Authorization: Bearer abcdefghijk1": "Authorization: Bearer <secret>",
}

UNTOUCHED = (
    "malice palace root rooted",
    "/rootfs /mnt/root/x /usr/lib/python3.11/ast.py",
    "4217 rows, EOS_TOKEN=50256, cache_key: abc123456789x",
    "x@self.weight + q@k.T, a @ b.com_plex, y@w.to(device)",
    "nvidia-cudnn-cu12==9.1.0.70, cuDNN version: 9.1.0.70, 127.0.0.1, libx.so.1.2.3.4",
    "V1115 00:15:27.123000 12 torch/_dynamo/guards.py:9] [0/1] std::vector<at::Tensor>",
    "token = self.token; api_key=settings.api_key; task-abcdefghijklmnop1234",
    "torch.compile(model, mode='max-autotune')  # sk-short",
    "GB101@model.py:42, --compile KEY=VALUE, 'secret': 'secrets', bearer authorization",
    "'/site-packages/' in path, test_torchinductor_dynamic_shapes.py",
    "@torch.compile\ndef f(x): return x",
)

TOKENS = (
    "hf_" + "aB3dE" * 6,
    "sk-proj-" + "aB3dE" * 6,
    "ghp_" + "aB3dE" * 7,
    "github_pat_" + "aB3_E" * 7,
    "AKIA" + "ABCD1234" * 2,
    "xoxb-" + "1234-" * 4 + "abc",
    "AIza" + "aB3dE" * 7,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc_def-1",
    "glpat-" + "aB3dE" * 4,
    "nvapi-" + "aB3dE" * 5,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
)


@pytest.mark.parametrize("text", HIDDEN)
def test_what_is_known_is_hidden(text: str) -> None:
    assert Redactor(KNOWN).text(text) == HIDDEN[text]


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_only_looks_like_it_stays(text: str) -> None:
    redactor = Redactor(KNOWN)
    assert redactor.text(text) == text
    assert not redactor.counts


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("around", ["{}", "x = '{}'", 'log\\n{}\\n"', "a/{}/b"])
def test_tokens_are_known_by_their_form(token: str, around: str) -> None:
    assert token[:40] not in Redactor(PrivateValues()).text(around.format(token))


@pytest.mark.parametrize("name", ["a", "root", "torch", "test", "self", "graph"])
def test_a_common_name_is_hidden_in_homes_alone(name: str) -> None:
    redactor = Redactor(PrivateValues(names=(name,), homes=(f"/home/{name}",)))
    plain = "import torch\ndef test(self): return a + graph  # root a"
    assert redactor.text(plain) == plain
    assert redactor.text(f"/usr/{name}/x.py") == f"/usr/{name}/x.py" or name == "a"
    for text in (f"/home/{name}/x", f"/tmp/torchinductor_{name}/x", f"{name}@box"):
        hidden = redactor.text(text)
        assert hidden != text and f"/{name}/" not in hidden


def test_source_still_parses() -> None:
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


KEY = (("SAFE_KEY", "12345678"),)


def test_json_hides_keys_numbers_and_variables() -> None:
    redactor = Redactor(PrivateValues(names=("alice",), secrets=KEY))
    given = {"alice": [12345678, 3, None], "HF_TOKEN": "x", "code": "GB101"}
    hidden = {"<user>": ["<secret>", 3, None], "HF_TOKEN": "<secret>", "code": "GB101"}
    assert redactor.json(given) == hidden
    assert redactor.counts == {"user": 1, "secret": 2}


def test_bytes_that_are_no_text_keep_their_length() -> None:
    redactor = Redactor(PrivateValues(homes=("/home/alice",)))
    data = b"\xff\x00/home/alice/x\xfe"
    hidden = redactor.bytes(data)
    assert len(hidden) == len(data) and b"alice" not in hidden
    assert redactor.bytes(b"\xff\x00\xfe") == b"\xff\x00\xfe"


def test_a_file_name_has_no_signs_of_the_shell() -> None:
    assert Redactor(KNOWN).name("alice-net.py") == "user-net.py"
    assert Redactor(KNOWN).name("graph_0.py") == "graph_0.py"


def test_here_knows_this_account_and_the_environment() -> None:
    environ = {"USER": "zaphod", "HOME": "/srv/people/zaphod", "S3_SECRET": "brox-4711"}
    environ |= {"http_proxy": "http://me:hush-hush@proxy", "TMPDIR": "/big/zaphod/t"}
    redactor = Redactor.here(environ, ["/opt/plans/heart"])
    text = (
        "zaphod /srv/people/zaphod/x /opt/plans/heart/x brox-4711 hush-hush /big/zaphod"
    )
    hidden = redactor.text(text)
    assert hidden == "<user> <home>/x <project>/x <secret> <secret> /big/<user>"
    assert os.getcwd() not in redactor.text(f"{os.getcwd()}/x")
    assert redactor.is_clean(hidden) and not redactor.is_clean(text)


def test_a_switch_is_no_secret() -> None:
    redactor = Redactor.here({"TORCH_BYPASS": "1", "SSH_AUTH_SOCK": "/tmp"})
    assert redactor.text("TORCH_BYPASS=1 in /tmp") == "TORCH_BYPASS=1 in /tmp"
    assert redactor.json({"TORCH_BYPASS": "1"}) == {"TORCH_BYPASS": "1"}


def test_hiding_again_changes_nothing() -> None:
    redactor = Redactor(KNOWN)
    for text in HIDDEN.values():
        assert redactor.text(text) == text


@pytest.mark.slow
def test_ten_megabytes_take_seconds() -> None:
    lines = [
        f"V1115 00:15:27.{n:06} 7 torch/_dynamo/guards.py:{n}] [{n}/0] TENSOR_MATCH: "
        f"check_tensor(L['x{n}'], DispatchKeySet(CPU)), 'File \"/usr/lib/python3.11/"
        f'site-packages/torch/nn/modules/module.py", line {n}'
        for n in range(45_000)
    ]
    random.Random(0).shuffle(lines)
    log = "\n".join([*lines, "alice"])
    redactor = Redactor(KNOWN)
    begin = time.process_time()
    hidden = redactor.text(log)
    assert len(log) > 9e6 and hidden.endswith("<user>")
    assert time.process_time() - begin < 12
