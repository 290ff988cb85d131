"""`torchproof.load`: what is refused starts cold and right, and says why."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fabricated import CALL, Net, details_of, fabricated
from pack_keys import KEY, OTHER_PUBLIC, PUBLIC
from torch import nn

import torchproof
from torchproof.records import schema
from torchproof.records.run import UserError
from torchproof.runtime.loading import (
    compatibility,
    example_inputs,
    source_hash,
)
from torchproof.runtime.loading.pack_details import Place

pytestmark = pytest.mark.usefixtures("own_cache")
PATIENCE_S = 120


def refusal(pack: Path, caplog: pytest.LogCaptureFixture, model: Net) -> str:
    """Why a pack is not used; the model answers as before and logs the reason once."""
    expected = model.eval()(*CALL)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "torchproof"):
        loaded = torchproof.load(pack, model)
    assert loaded is model
    torch.testing.assert_close(loaded(*CALL), expected)
    status = torchproof.status(loaded)
    assert status.pack is not None and status.pack["used"] is False
    assert status.compiled_calls == 1
    why = str(status.pack["why_not"])
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if why in line]) == 1 and why in str(status)
    assert why in refusal_of_load(pack, model)
    return why


def refusal_of_load(pack: Path, model: Net | None = None) -> str:
    """Why `load` does not use a pack, without a call of the model."""
    with pytest.raises(torchproof.PackRefused) as refused:
        torchproof.load(pack, model or Net(), strict=True)
    message = str(refused.value)
    assert "\n" not in message and "\x1b" not in message and len(message) < 700
    assert str(pack) in message
    return message


# -- trust -----------------------------------------------------------------------------


def test_pack_that_others_changed_starts_cold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every other way to spoil a pack is a test of pack_format."""
    model = Net()
    changed = fabricated(tmp_path / "changed", model)
    (changed / "caches" / "ab" / "code.py").write_text("x = 2\n")
    assert "sha256" in refusal(changed, caplog, model)
    writable = fabricated(tmp_path / "writable", model)
    (writable / "torchproof.toml").chmod(0o666)
    assert "chmod -R go-w" in refusal_of_load(writable, model)
    cut_off = fabricated(tmp_path / "pack.tar.gz", model)
    cut_off.write_bytes(cut_off.read_bytes()[:300])
    assert "cut off" in refusal_of_load(cut_off, model)


def test_key_that_did_not_sign_it_is_refused(tmp_path: Path) -> None:
    model = Net()
    pack = fabricated(tmp_path / "pack", model, key=KEY)
    assert torchproof.status(torchproof.load(pack, model, key=PUBLIC)).pack["used"]
    with pytest.raises(torchproof.PackRefused, match="signature"):
        torchproof.load(pack, Net(), key=OTHER_PUBLIC, strict=True)
    with pytest.raises(UserError, match="public key"):
        torchproof.load(pack, Net(), key=KEY)
    cold = torchproof.load(fabricated(tmp_path / "unsigned", model), model, key=PUBLIC)
    assert "not signed" in torchproof.status(cold).pack["why_not"]
    with pytest.raises(UserError, match=str(tmp_path / "none")):
        torchproof.load(tmp_path / "none", Net())
    with pytest.raises(torchproof.PackRefused, match=r"\bmodel\b"):
        torchproof.load(pack)


# -- fit -------------------------------------------------------------------------------


PLACES: dict[str, dict[str, Any]] = {
    "torch 2.99.0": {"torch": "2.99.0"},
    "commit 0": {"commit": "0"},
    "Python 3.9": {"python": "3.9"},
    "ZVECTOR": {"isa": "ZVECTOR"},
    "quux": {"features": ["quux"]},
    "machine vax": {"machine": "vax"},
    "cuda": {"device": "cuda"},
}


def test_pack_that_does_not_fit_starts_cold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net()
    here = details_of(model)["place"]
    for reason, changes in PLACES.items():
        pack = fabricated(tmp_path / reason, model, place=here | changes)
        assert reason in refusal_of_load(pack, model)
    assert reason in refusal(pack, caplog, model)


def test_another_gpu_or_an_older_driver_does_not_fit() -> None:
    then = Place("cuda", gpu="H200", capability="9.0", driver="570.86")

    def reasons(**changes: str) -> str:
        return "; ".join(compatibility.refusals(then, replace(then, **changes)))

    assert reasons(driver="575.1") == ""
    assert re.search(r"\bH200\b.*\bA100\b", reasons(gpu="A100"))
    assert "compute capability 9.0" in reasons(capability="8.0")
    assert "535.104" in reasons(driver="535.104")


def test_another_model_is_refused_and_other_weights_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, own_cache: Path
) -> None:
    pack = fabricated(tmp_path / "pack", Net())
    other = Net().eval()  # drawn anew
    expected = other(*CALL)
    loaded = torchproof.load(pack, other)
    status = torchproof.status(loaded)
    assert status.pack["used"] and status.reason == "pack pack"
    torch.testing.assert_close(loaded(*CALL), expected)
    assert (own_cache / "ab" / "code.py").read_text() == "x = 1\n"
    assert own_cache.stat().st_mode & 0o777 == 0o700
    larger = Net()
    larger.more = torch.nn.Linear(2, 2)
    assert "6 more" in refusal(pack, caplog, larger)


def test_changed_source_is_refused_and_a_comment_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "traced_by_it.py"
    file.write_text("def scale(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("traced_by_it")
    hashes = source_hash.hashes([str(file)])
    assert [*hashes] == ["traced_by_it"]
    file.write_text("def scale(x):\n    # twice\n    return 2 * x\n")
    assert source_hash.changes(hashes) == []
    file.write_text("def scale(x):\n    return 3 * x\n")
    model = Net()
    pack = fabricated(tmp_path / "pack", model, code=schema.to_plain(hashes))
    assert "code of traced_by_it" in refusal(pack, caplog, model)


def test_cache_folder_that_cannot_be_used_starts_cold(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    own_cache: Path,
) -> None:
    pack = fabricated(tmp_path / "pack", Net())
    own_cache.mkdir()
    own_cache.chmod(0o777)
    assert f"chmod go-w {own_cache}" in refusal(pack, caplog, Net())
    assert not (own_cache / "ab").exists()
    own_cache.chmod(0o700)

    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkstemp", full)
    assert os.strerror(errno.ENOSPC) in refusal(pack, caplog, Net())


# -- packs that are sealed and invalid -------------------------------------------------


def resealed(pack: Path, **changes: str) -> Path:
    """The pack with JSON texts in its manifest, sealed anew."""
    manifest = json.loads((pack / "manifest.json").read_text())
    del manifest["sha256"]
    for key in changes:
        holder = manifest["details"] if key in manifest["details"] else manifest
        holder[key] = f"@{key}@"
    body = json.dumps(manifest, indent=1)
    for key, text in changes.items():
        body = body.replace(f'"@{key}@"', text)
    seal = hashlib.sha256(body.encode()).hexdigest()
    whole = body.removesuffix("\n}") + f',\n "sha256": "{seal}"\n}}\n'
    (pack / "manifest.json").write_text(whole)
    return pack


DEEP = "[" * 100_000 + "]" * 100_000
# Calls that cannot be made.
KINDS = ("tensor", "number", "float", "other")
LEAF = '[1, {"type": null, "context": null, "children_spec": []}]'
FORMS = (
    *({}, {"spec": "[]", "leaves": []}, {"spec": LEAF, "leaves": []}),
    *({"spec": LEAF, "leaves": [{"kind": kind, "value": 5}]} for kind in KINDS),
    {
        "spec": '[1, {"type": "x.Y", "context": "[]", "children_spec": []}]',
        "leaves": [],
    },
)
CALL_OF = '[{{"inputs": {{"form": {}}}, "state": {}, "gradients": false}}]'
STATE = '{"training": true, "others": []}'
MANIFESTS = {
    "calls": (
        *("null", '[{"inputs": 3, "state": {}, "gradients": 1}]'),
        *(CALL_OF.format(json.dumps(form), STATE) for form in FORMS),
    ),
    "place": ("{}", '{"device": "cpu", "features": 5}'),
    "code": ("[]", '{"a": {"file": 3}}'),
    "graphs": ('"many"', "3", "[3]", "9" * 5000, "[" * 200 + "]" * 200),
    "train": ('"yes"',),
    "artifact": ("[]", '"aoti"', '"torchscript"', '"\\u001b[1m"'),
    "config": (DEEP,),
    "details": ("[]",),
    "files": ('{"a": 3}', '{"a": {"sha256": "x"}}'),
    "schema": ('"1"', "99"),
    "kind": ('"other"',),
}


def test_invalid_manifests_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, own_cache: Path
) -> None:
    sound = fabricated(tmp_path / "sound", Net())
    # Sealed anew it is used, so what follows shows what the changes do.
    pack = torchproof.status(torchproof.load(resealed(sound, train="false"), Net()))
    assert pack.pack is not None and pack.pack["used"]
    shutil.rmtree(own_cache)

    def changed(**texts: str) -> Path:
        copy = tmp_path / f"{len(os.listdir(tmp_path))}"
        shutil.copytree(sound, copy)
        return resealed(copy, **texts)

    for name, texts in MANIFESTS.items():
        for text in texts:
            refusal_of_load(changed(**{name: text}))
    assert "invalid" in refusal(changed(graphs="null"), caplog, Net())
    assert not (own_cache / "ab").exists()


# -- requests after the warm-up --------------------------------------------------------


def loaded_net(tmp_path: Path, *sizes: int) -> Net:
    """A model from a pack without gradients, with a call for each batch size."""
    model = Net().eval()
    call = details_of(model)["calls"][0] | {"state": {"training": False, "others": []}}
    described = [example_inputs.describe((torch.ones(n, 4),)) for n in sizes]
    calls = [call | {"inputs": schema.to_plain(each)} for each in described]
    loaded = torchproof.load(fabricated(tmp_path / "pack", model, calls=calls), model)
    assert torchproof.status(loaded).pack["used"]  # type: ignore[index]
    return model


def test_no_shape_of_the_pack_is_compiled_after_the_warm_up(tmp_path: Path) -> None:
    model = loaded_net(tmp_path, 3, 5, 7)
    before = len(torchproof.status(model).compilations)
    assert before == 2  # one for the first size, one for all others
    with torch.no_grad():
        for size in (3, 5, 7, 9):
            model(torch.ones(size, 4))
            model(torch.ones(size + 1, 4)[1:])
    assert len(torchproof.status(model).compilations) == before


def compiled_later(model: Any, x: torch.Tensor) -> None:
    """The first call runs eager, and a later one the code compiled for it meanwhile."""
    before = torchproof.status(model)
    want = model(x)
    assert torchproof.status(model).compiled_calls == before.compiled_calls
    end = time.monotonic() + PATIENCE_S
    while torchproof.status(model).pending and time.monotonic() < end:
        time.sleep(0.05)
    torch.testing.assert_close(model(x), want)
    after = torchproof.status(model)
    assert after.compiled_calls == before.compiled_calls + 1
    assert after.totals.compilations == before.totals.compilations + 1
    assert not after.fallbacks


def test_without_waiting_only_calls_that_the_pack_lacks_run_eager(
    tmp_path: Path,
) -> None:
    torch.compiler.reset()  # Dynamo remembers the sizes of models before
    model = Net().eval()
    [call] = details_of(model)["calls"]
    call["state"] = {"training": False, "others": []}
    pack = fabricated(tmp_path / "pack", model, calls=[call])
    loaded = torchproof.load(pack, model, wait=False)
    status = torchproof.status(loaded)
    assert status.pack["used"] and status.state == "compiled"
    with torch.no_grad():
        loaded(*CALL)
        assert torchproof.status(loaded).compiled_calls == status.compiled_calls + 1
        compiled_later(loaded, torch.ones(7, 4))


def test_a_refused_pack_does_not_make_calls_wait(tmp_path: Path) -> None:
    torch.compiler.reset()
    model = Net().eval()
    pack = fabricated(tmp_path / "pack", nn.Linear(4, 4))
    loaded = torchproof.load(pack, model, wait=False)
    status = torchproof.status(loaded)
    assert not status.pack["used"] and status.reason == status.pack["why_not"]
    with torch.no_grad():
        compiled_later(loaded, *CALL)
    with pytest.raises(UserError, match="wait=1"):
        torchproof.load(pack, model, wait=1)


def test_a_call_in_another_mode_than_the_pack_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = loaded_net(tmp_path, 3)
    with caplog.at_level(logging.WARNING, "torchproof"):
        with torch.no_grad():
            model(torch.ones(3, 4))
        assert len(torchproof.status(model).compilations) == 1
        assert not [line for line in caplog.messages if "pack" in line]
        for mode in (torch.enable_grad, torch.inference_mode):
            with mode():
                for _ in range(2):
                    model(torch.ones(3, 4))
    status = torchproof.status(model)
    assert len(status.compilations) == 3
    lines = [line for line in caplog.messages if "pack" in line]
    misses = status.pack["misses"]  # type: ignore[index]
    for number, says in enumerate(("torch.no_grad()", "torch.inference_mode()")):
        assert says in lines[number] and says in misses[number] and says in str(status)
