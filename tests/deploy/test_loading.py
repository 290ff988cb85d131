"""`torchproof.load`: what is refused starts cold and right, and says why."""

from __future__ import annotations

import errno
import functools
import io
import logging
import os
import re
import tarfile
import tempfile
import time
from collections.abc import Callable
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
from torchproof.runtime import production
from torchproof.runtime.loading import compatibility, example_inputs, source_hash
from torchproof.runtime.loading.pack_details import Place

Change = Callable[[Path], None]
NOBODY = 65534
PATIENCE_S = 120


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


def seen_cold(pack: Path, caplog: pytest.LogCaptureFixture, model: Net) -> str:
    """Loads a pack that is refused: the model answers as it did, and says why."""
    want = model.eval()(*CALL)
    with caplog.at_level(logging.WARNING, "torchproof"):
        loaded = torchproof.load(pack, model)
    assert loaded is model
    torch.testing.assert_close(loaded(*CALL), want)
    told = torchproof.status(loaded)
    assert told.pack is not None and told.pack["used"] is False
    assert told.compiled_calls == 1
    why = str(told.pack["why_not"])
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if why in line]) == 1 and why in str(told)
    with pytest.raises(torchproof.PackRefused):
        torchproof.load(pack, model, strict=True)
    return why


# -- trust -----------------------------------------------------------------------------


def flip(pack: Path) -> None:
    file = pack / "caches" / "ab" / "code.py"
    raw = bytearray(file.read_bytes())
    raw[0] ^= 1
    file.write_bytes(raw)


def give_away(pack: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(pack / "torchproof.toml", NOBODY, NOBODY)


def open_to_all(pack: Path) -> None:
    (pack / "graphs.json").chmod(0o666)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(flip, "sha256"), (give_away, "65534"), (open_to_all, "chmod -R go-w")],
)
def test_a_folder_that_others_could_have_changed_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Change, reason: str
) -> None:
    model = Net()
    pack = fabricated(tmp_path / "pack", model)
    change(pack)
    assert reason in seen_cold(pack, caplog, model)


def cut_off(pack: Path) -> None:
    raw = pack.read_bytes()
    pack.write_bytes(raw[: len(raw) // 2])


def climb(pack: Path) -> None:
    raw = io.BytesIO(pack.read_bytes())
    with tarfile.open(fileobj=raw) as old, tarfile.open(pack, "w:gz") as changed:
        for entry in old:
            changed.addfile(entry, old.extractfile(entry))
        entry = tarfile.TarInfo("pack/../../evil.py")
        changed.addfile(entry, io.BytesIO())


@pytest.mark.parametrize(
    ("change", "reason"), [(cut_off, "cut off"), (climb, "'../../evil.py'")]
)
def test_an_archive_that_was_tampered_with_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Change, reason: str
) -> None:
    model = Net()
    pack = fabricated(tmp_path / "pack.tar.gz", model)
    change(pack)
    assert reason in seen_cold(pack, caplog, model)


def test_a_key_that_did_not_sign_it_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net()
    pack = fabricated(tmp_path / "pack", model, key=KEY)
    assert torchproof.status(torchproof.load(pack, model, key=PUBLIC)).pack["used"]
    with pytest.raises(torchproof.PackRefused, match="signature"):
        torchproof.load(pack, Net(), key=OTHER_PUBLIC, strict=True)
    with pytest.raises(UserError, match="public key"):
        torchproof.load(pack, Net(), key=KEY)
    cold = torchproof.load(fabricated(tmp_path / "unsigned", model), model, key=PUBLIC)
    assert "not signed" in torchproof.status(cold).pack["why_not"]


def test_a_pack_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=str(tmp_path / "none")):
        torchproof.load(tmp_path / "none", Net())


def test_without_a_model_there_is_no_going_without_the_pack(tmp_path: Path) -> None:
    pack = fabricated(tmp_path / "pack", Net())
    with pytest.raises(torchproof.PackRefused, match=r"\bmodel\b"):
        torchproof.load(pack)


# -- fit -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"torch": "2.99.0"}, "torch 2.99.0"),
        ({"commit": "0"}, "commit 0"),
        ({"python": "3.9"}, "Python 3.9"),
        ({"isa": "ZVECTOR"}, "ZVECTOR"),
        ({"features": ["quux"]}, "quux"),
        ({"machine": "vax"}, "machine vax"),
        ({"device": "cuda"}, "cuda"),
    ],
)
def test_another_place_is_refused(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    reason: str,
) -> None:
    model = Net()
    told = details_of(model)["place"] | changes
    pack = fabricated(tmp_path / "pack", model, place=told)
    assert reason in seen_cold(pack, caplog, model)


def test_another_gpu_or_an_older_driver_is_refused() -> None:
    then = Place("cuda", gpu="H200", capability="9.0", driver="570.86")

    def told(**changes: str) -> str:
        return "; ".join(compatibility.refusals(then, replace(then, **changes)))

    assert told(driver="575.1") == ""
    assert re.search(r"\bH200\b.*\bA100\b", told(gpu="A100"))
    assert "compute capability 9.0" in told(capability="8.0")
    assert "535.104" in told(driver="535.104")


def test_another_model_is_refused_and_other_weights_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack = fabricated(tmp_path / "pack", Net())
    other = Net().eval()  # drawn anew
    want = other(*CALL)
    loaded = torchproof.load(pack, other)
    status = torchproof.status(loaded)
    assert status.pack["used"] and status.reason == "pack pack"
    torch.testing.assert_close(loaded(*CALL), want)
    larger = Net()
    larger.more = torch.nn.Linear(2, 2)
    assert "6 more" in seen_cold(pack, caplog, larger)


def test_changed_source_is_refused_and_a_comment_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "traced_by_it.py"
    file.write_text("def scale(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("traced_by_it")
    told = source_hash.hashes([str(file)])
    assert [*told] == ["traced_by_it"]
    file.write_text("def scale(x):\n    # twice\n    return 2 * x\n")
    assert source_hash.changes(told) == []
    file.write_text("def scale(x):\n    return 3 * x\n")
    model = Net()
    pack = fabricated(tmp_path / "pack", model, code=schema.to_plain(told))
    assert "code of traced_by_it" in seen_cold(pack, caplog, model)


def test_damaged_papers_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net()
    pack = fabricated(tmp_path / "pack", model, place={})
    assert "refused" in seen_cold(pack, caplog, model)


# -- use -------------------------------------------------------------------------------


def test_files_land_in_torchs_cache_folder(tmp_path: Path) -> None:
    model = torchproof.load(fabricated(tmp_path / "pack", Net()), Net())
    cache = tmp_path / "cache"
    assert (cache / "ab" / "code.py").read_text() == "x = 1\n"
    assert cache.stat().st_mode & 0o777 == 0o700
    assert torchproof.status(model).pack["used"]


def test_a_cache_folder_that_others_write_in_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    pack = fabricated(tmp_path / "pack", Net())
    assert f"chmod go-w {cache}" in seen_cold(pack, caplog, Net())
    assert not (cache / "ab").exists()


def test_a_cache_folder_that_takes_no_files_starts_cold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = fabricated(tmp_path / "pack", Net())

    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkstemp", full)
    assert os.strerror(errno.ENOSPC) in seen_cold(pack, caplog, Net())


@pytest.mark.parametrize(
    "papers",
    [
        {"calls": [1]},
        {"calls": [{}]},
        {"artifact": "aoti"},
    ],
)
def test_papers_that_lack_something_start_cold(
    papers: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack = fabricated(tmp_path / "pack", Net(), **papers)
    why = seen_cold(pack, caplog, Net())
    assert str(pack) in why and ("manifest" in why or "KeyError" in why)
    assert not (tmp_path / "cache" / "ab").exists()


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


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (torch.no_grad, None),
        (torch.enable_grad, "torch.no_grad()"),
        (torch.inference_mode, "torch.inference_mode()"),
    ],
)
def test_a_call_in_another_mode_than_the_pack_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: Any, says: str | None
) -> None:
    model = loaded_net(tmp_path, 3)
    with caplog.at_level(logging.WARNING, "torchproof"), mode():
        for _ in range(2):
            model(torch.ones(3, 4))
    status = torchproof.status(model)
    assert len(status.compilations) == (1 if says is None else 2)
    lines = [line for line in caplog.messages if "pack" in line]
    assert len(lines) == (says is not None)
    misses = status.pack["misses"]  # type: ignore[index]
    assert len(misses) == (says is not None)
    if says is not None:
        assert says in lines[0] and says in misses[0] and says in str(status)
