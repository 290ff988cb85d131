"""`torchproof show --caches`: torch's own places, and only caches are cleared."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from torchproof.cli import main
from torchproof.records.run import UserError
from torchproof.report import cache_folders


def put(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A home with every cache in it, and something in the wrong place."""
    inductor = tmp_path / "inductor"
    for name, size in {
        "fxgraph/aa/abc/entry": 100,
        "aotautograd/abc/entry": 50,
        "triton/0/ABC/k.cubin": 40,
        "ab/cab.py": 30,
        "ab/cab.best_config": 7,
        "dynamo/code_state_x.pkl": 5,
        "thesis/chapter.tex": 1000,
    }.items():
        put(inductor / name, size)
    put(tmp_path / "home/.triton/cache" / ("A" * 43) / "k.cubin", 11)
    put(tmp_path / "home/.nv/ComputeCache/index", 12)
    put(tmp_path / "home/.cache/torch_extensions/py311_cpu/x/x.so", 13)
    (tmp_path / "tmp").mkdir()
    emptied = cache_folders._empty

    def guarded(folder: cache_folders.CacheFolder) -> None:
        # What is cleared here must be the test's own, or the machine's caches are gone.
        assert tmp_path in folder.path.resolve().parents, folder.path
        emptied(folder)

    monkeypatch.setattr(cache_folders, "_empty", guarded)
    # Empty is as good as not set, in a process that inherits what is set here too.
    names = ("TRITON_CACHE_DIR", "TRITON_HOME", "CUDA_CACHE_PATH", "XDG_CACHE_HOME")
    return {
        **dict.fromkeys((*names, "TORCH_EXTENSIONS_DIR"), ""),
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(inductor),
    }


def test_every_cache_is_found_with_its_size(places: dict[str, str]) -> None:
    found = {folder.name: folder for folder in cache_folders.listing(places)}
    assert list(found)[:2] == ["inductor", "inductor-default"]
    assert list(found)[2:] == ["triton", "cuda", "extensions"]
    inductor = found["inductor"]
    assert inductor.chosen_by == "TORCHINDUCTOR_CACHE_DIR"
    assert (inductor.files, inductor.bytes) == (7, 1232)
    sizes = [folder.bytes for folder in list(found.values())[1:]]
    assert sizes == [None, 11, 12, 13]


def test_clearing_takes_the_cache_and_nothing_else(places: dict[str, str]) -> None:
    root, home = Path(places["TORCHINDUCTOR_CACHE_DIR"]), Path(places["HOME"])
    kept = put(root.parent / "outside" / "file")
    (root / "zz").symlink_to(kept.parent)  # links are removed and not followed
    (root / "ab" / "link").symlink_to(kept)
    found = cache_folders.listing(places)
    assert [f.name for f in cache_folders.cleared(found, "inductor")] == ["inductor"]
    assert os.listdir(root) == ["thesis"] and (root / "thesis/chapter.tex").exists()
    assert kept.exists()
    assert (home / ".nv/ComputeCache/index").exists()
    cache_folders.cleared(cache_folders.listing(places), "all")
    assert not (home / ".nv/ComputeCache/index").exists()
    assert not list((home / ".triton/cache").iterdir())
    assert not list((home / ".cache/torch_extensions").iterdir())


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("link", "link"),
        ("home", "home"),
        ("here", "home"),
        ("above", "home"),
        ("tmp", "temporary"),
        ("other", f"user {os.geteuid()}"),
    ],
)
def test_what_is_not_ours_to_clear_is_refused(
    case: str,
    why: str,
    places: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(places["TORCHINDUCTOR_CACHE_DIR"])
    match case:
        case "link":
            root = tmp_path / "link"
            root.symlink_to(places["TORCHINDUCTOR_CACHE_DIR"])
        case "home":
            monkeypatch.setenv("HOME", str(root))
        case "here" | "above":
            monkeypatch.chdir(root if case == "here" else root / "ab")
        case "tmp":
            monkeypatch.setattr(tempfile, "gettempdir", lambda: str(root))
        case "other":
            mine = os.geteuid()
            monkeypatch.setattr(cache_folders.os, "geteuid", lambda: mine + 1)
    variables = {**places, "TORCHINDUCTOR_CACHE_DIR": str(root)}
    found = cache_folders.listing(variables)
    assert why in found[0].why_kept
    with pytest.raises(UserError, match=f"{root}.*{re.escape(found[0].why_kept)}"):
        cache_folders.cleared(found, "inductor")
    cache_folders.cleared(found, "all")
    assert (root / "ab" / "cab.py").exists()


def test_the_commands(
    places: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert main(["show", "--caches"]) == 0
    shown = capsys.readouterr().out
    assert "1.20 KiB" in shown
    assert " torchproof show --caches --clear inductor\n" in shown
    assert main(["show", "--caches", "--clear", "cuda", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cleared"] == ["cuda"]
    assert [row["bytes"] for row in document["caches"] if row["name"] == "cuda"] == [12]
    assert not Path(places["HOME"], ".nv/ComputeCache/index").exists()


@pytest.mark.slow
def test_the_places_are_those_that_torch_takes(tmp_path: Path) -> None:
    program = (
        "import os, torch.utils.cpp_extension as extensions\n"
        "from torch._inductor.runtime.cache_dir_utils import cache_dir\n"
        "print(cache_dir()); print(extensions.get_default_build_root())\n"
        "os.environ['TORCHINDUCTOR_CACHE_DIR'] = 'some/where'; print(cache_dir())"
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TORCHINDUCTOR")}
    environ |= {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        cwd=tmp_path,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    places = {
        folder.name: str(folder.path) for folder in cache_folders.listing(environ)
    }
    first, extensions, second = done.stdout.splitlines()
    assert [places["inductor"], places["extensions"]] == [first, extensions]
    chosen = cache_folders.listing({**environ, "TORCHINDUCTOR_CACHE_DIR": second})
    assert [str(folder.path) for folder in chosen[:2]] == [second, first]
