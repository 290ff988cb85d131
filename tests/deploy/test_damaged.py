"""A pack that is sealed and says nonsense: refused in one line, and started cold."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fabricated import CALL, Net, details_of, fabricated

import torchproof
from torchproof.runtime import production
from torchproof.runtime.loading import pack_details
from torchproof.runtime.pack_format.contents import open_pack
from torchproof.runtime.pack_format.manifest import Refused


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of its own, and compiling that generates no code."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    plain = production.compile
    cold = functools.partial(plain, backend="eager")

    def compile(model: Any, *, recipe: Any = None, wait: bool = True) -> Any:
        if recipe is None:
            return cold(model, wait=wait)
        return plain(model, recipe=recipe)

    monkeypatch.setattr(production, "compile", compile)


def resealed(pack: Path, files: dict[str, bytes], /, **changes: str) -> Path:
    """The pack with files exchanged and JSON texts in its manifest, sealed anew."""
    manifest = json.loads((pack / "manifest.json").read_text())
    del manifest["sha256"]
    for name, content in files.items():
        (pack / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        manifest["files"][name] |= {"sha256": digest, "bytes": len(content)}
    marked = {f"@{key}@": text for key, text in changes.items()}
    for key in changes:
        holder = manifest["details"] if key in manifest["details"] else manifest
        holder[key] = f"@{key}@"
    body = json.dumps(manifest, indent=1)
    for mark, text in marked.items():
        body = body.replace(f'"{mark}"', text)
    seal = hashlib.sha256(body.encode()).hexdigest()
    whole = body.removesuffix("\n}") + f',\n "sha256": "{seal}"\n}}\n'
    (pack / "manifest.json").write_text(whole)
    return pack


def why_not(pack: Path, *, called: bool = False) -> str:
    model = Net().eval()
    want = model(*CALL)
    loaded = torchproof.load(pack, model)
    if called:
        torch.testing.assert_close(loaded(*CALL), want)
    told = torchproof.status(loaded).pack
    assert told is not None and told["used"] is False
    with pytest.raises(torchproof.PackRefused) as refused:
        torchproof.load(pack, Net(), strict=True)
    said = str(refused.value)
    assert "\n" not in said and len(said) < 700
    return str(told["why_not"])


DEEP = "[" * 100_000 + "]" * 100_000
GRAPHS = {
    "null": b"null",
    "a number": b"3",
    "an object": b"{}",
    "deep": DEEP.encode(),
    "not deep enough for Python": b"[" * 200 + b"]" * 200,
    "a list of null": b"[null]",
    "no facts": b'[{"key": "a"}]',
    "facts of another form": b'[{"key": "a", "facts": {"b": 3}}]',
    "half a fact": b'[{"key": "a", "facts": {"b": {"digest": "c"}}}]',
    "a key that is a list": b'[{"key": [], "facts": {}}]',
    "an integer of 5000 digits": b"[" + b"9" * 5000 + b"]",
    "no JSON": b"\xff\xfe",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_that_are_none(name: str, tmp_path: Path) -> None:
    pack = fabricated(tmp_path / "pack", Net())
    resealed(pack, {"graphs.json": GRAPHS[name]})
    assert "graphs.json" in why_not(pack, called=name == "null")
    assert not (tmp_path / "cache" / "ab").exists()


MANIFESTS = {
    "calls": ("null", "{}", "[[]]", '[{"inputs": 3, "state": {}, "gradients": 1}]'),
    "place": ("null", "[]", '{"device": 3}', '{"device": "cpu", "features": 5}'),
    "code": ("[]", "null", '{"a": []}', '{"a": {"file": 3}}'),
    "graphs": ('"many"', "null", "-1", "9" * 5000),
    "train": ('"yes"', "[]"),
    "artifact": ("[]", "{}", "null", '"aoti"', '"torchscript"', '"\\u001b[1m"'),
    "config": (DEEP,),
    "details": ("[]", "3"),
    "environment": ("[]",),
    "files": ("[]", '{"a": 3}', '{"a": {"sha256": "x"}}'),
    "schema": ('"1"', "99"),
    "kind": ("[]", '"other"'),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_of_other_types(name: str, tmp_path: Path) -> None:
    for number, text in enumerate(MANIFESTS[name]):
        pack = fabricated(tmp_path / f"pack{number}", Net())
        why = why_not(resealed(pack, {}, **{name: text}))
        assert str(pack) in why and "\x1b" not in why


def test_a_pack_that_fits_is_used_still(tmp_path: Path) -> None:
    """The clean twin: sealed anew, and nothing of it changed."""
    model = Net()
    pack = resealed(fabricated(tmp_path / "pack", model), {}, train="false")
    told = torchproof.status(torchproof.load(pack, model)).pack
    assert told is not None and told["used"]


@pytest.mark.parametrize(
    "change",
    [
        {"form": {"kind": "tensor", "value": 5}},
        {"form": {"kind": "tensor", "value": True}},
        {"form": {}},
        {"form": {"kind": "list", "parts": 3}},
        {"form": {"kind": "dict", "keys": ["a"], "parts": []}},
        {"form": {"kind": "float", "value": "1"}},
        {"tensors": []},
    ],
)
def test_calls_that_cannot_be_made(change: dict[str, Any], tmp_path: Path) -> None:
    given = details_of(Net())
    given["calls"][0]["inputs"] = change
    pack = fabricated(tmp_path / "pack", Net(), **given)
    with pytest.raises(Refused, match="manifest is invalid"):
        pack_details.read_details(pack_details.CachesDetails, open_pack(pack))
