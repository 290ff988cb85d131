"""A pack that was changed, cut off or made by someone else is refused, with why."""

from __future__ import annotations

import errno
import gzip
import hashlib
import hmac
import json
import os
import random
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import made_packs
import pytest
from cryptography.hazmat.primitives import serialization
from made_packs import FILES, member
from pack_keys import KEY, OTHER_KEY, OTHER_PUBLIC, PUBLIC

from torchproof import packs
from torchproof.records.run import UserError
from torchproof.runtime.pack_format import keys
from torchproof.runtime.pack_format.manifest import sealed

Spoil = Callable[[Path], object]


def load(at: Path, key: bytes | None = None) -> dict[str, bytes]:
    contents = packs.open_pack(at)
    packs.assert_trusted(contents, key)
    return {name: contents.read(name) for name in contents.names()}


@pytest.mark.parametrize("make", [made_packs.folder, made_packs.archive])
def test_a_good_pack_gives_its_files(make: Callable[..., Path], tmp_path: Path) -> None:
    at = make(tmp_path / "a.tar.gz", key=KEY)
    contents = packs.open_pack(at)
    packs.assert_trusted(contents, PUBLIC)
    packs.assert_trusted(contents)
    assert {name: contents.read(name) for name in contents.names()} == FILES
    assert contents.manifest.target == "a.py:make"
    assert contents.manifest.files["repro.py"].about == "the program"
    contents.copy("logs/torch/out.txt", tmp_path / "copied")
    assert (tmp_path / "copied").read_bytes() == FILES["logs/torch/out.txt"]


def _edited(name: str, edit: Callable[[bytes], bytes]) -> Spoil:
    return lambda at: (at / name).write_bytes(edit((at / name).read_bytes()))


def _flipped(held: bytes) -> bytes:
    return held[:3] + bytes([held[3] ^ 1]) + held[4:]


def _link(at: Path) -> None:
    (at.parent / "outside").write_bytes(FILES["repro.py"])
    (at / "repro.py").unlink()
    (at / "repro.py").symlink_to(at.parent / "outside")


def _linked_folder(at: Path) -> None:
    os.rename(at / "logs", at.parent / "logs")
    (at / "logs").symlink_to(at.parent / "logs")


def _pipe(at: Path) -> None:
    (at / "repro.py").unlink()
    os.mkfifo(at / "repro.py")


def _resealed(**changes: object) -> Spoil:
    """A manifest that is whole, and says something else."""

    def spoil(at: Path) -> None:
        plain = json.loads((at / "manifest.json").read_bytes())
        del plain["sha256"]
        (at / "manifest.json").write_bytes(sealed({**plain, **changes}))

    return spoil


def _named(name: str) -> Spoil:
    return _resealed(files={name: {"sha256": "0" * 64, "bytes": 1}})


# How a pack is spoilt, and the tokens of the refusal that belong to this cause alone.
IN_FOLDERS: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "a flipped bit": (_edited("repro.py", _flipped), ("repro.py", "sha256")),
    "a longer file": (
        _edited("repro.py", lambda held: held + b"x"),
        ("repro.py", "9 bytes"),
    ),
    "a shorter file": (
        lambda at: os.truncate(at / "repro.py", 4),
        ("repro.py", "4", "9 bytes"),
    ),
    "a flipped bit in the manifest": (
        _edited("manifest.json", _flipped),
        ("manifest.json",),
    ),
    "no manifest": (lambda at: (at / "manifest.json").unlink(), ("manifest.json",)),
    "a missing file": (lambda at: (at / "repro.py").unlink(), ("'repro.py'",)),
    "another file": (lambda at: (at / "logs/more").touch(), ("'logs/more'",)),
    "a link": (_link, ("'repro.py'", "regular files")),
    "a linked folder": (_linked_folder, ("'logs'", "regular files")),
    "a pipe": (_pipe, ("'repro.py'", "regular files")),
    "a climbing name": (_named("a/../../x"), ("'a/../../x'",)),
    "an absolute name": (_named("/etc/x"), ("'/etc/x'", "absolute")),
    "a name that colours a terminal": (_named("a\x1b[31m"), (repr("a\x1b[31m"),)),
    "a name with an empty part": (_named("a//b"), ("'a//b'",)),
    "a name of the manifest's": (_named("manifest.sig"), ("'manifest.sig'",)),
    "a newer schema": (_resealed(schema=2), ("schema 2",)),
    "another kind": (_resealed(kind="evil"), ('"evil"', "repro", "deploy")),
    "a table that is none": (_resealed(details=[1]), ("details", "an object")),
    "a size that is none": (
        _resealed(files={"a": {"sha256": "0" * 64, "bytes": -1}}),
        ("bytes", "-1"),
    ),
    "a file that is a folder": (
        _resealed(files={n: {"sha256": "0" * 64, "bytes": 1} for n in ("a", "a/b")}),
        ("'a'", "file", "folder"),
    ),
    "others may write a file": (
        lambda at: (at / "repro.py").chmod(0o666),
        ("/repro.py", "chmod -R go-w"),
    ),
    "the group may write it": (lambda at: at.chmod(0o775), ("chmod -R go-w",)),
    "others may write a folder of it": (
        lambda at: (at / "logs").chmod(0o777),
        ("/logs", "chmod -R go-w"),
    ),
    "others may write where it lies": (
        lambda at: at.parent.chmod(0o777),
        ("chmod go-w",),
    ),
}


def _assert_refused(at: Path, tokens: tuple[str, ...]) -> None:
    with pytest.raises(packs.Refused) as refused:
        load(at)
    said = str(refused.value)
    assert str(at) in said and "\n" not in said
    said = said.replace(str(at), "")  # the name of the test is a part of the path
    assert all(token in said for token in tokens), said


@pytest.mark.parametrize("name", IN_FOLDERS)
def test_a_spoilt_folder_is_refused(name: str, tmp_path: Path) -> None:
    spoil, tokens = IN_FOLDERS[name]
    (tmp_path / "in").mkdir()
    at = made_packs.folder(tmp_path / "in" / "a")
    spoil(at)
    _assert_refused(at, tokens)


# -- archives --------------------------------------------------------------------------


def _bomb(held: list[made_packs.Member]) -> list[made_packs.Member]:
    return [*held[:-1], member("a/repro.py", bytes(20_000_000))]


def _without(name: str) -> Callable[[list[made_packs.Member]], list[made_packs.Member]]:
    return lambda held: [(m, c) for m, c in held if m.name != name]


Members = list[made_packs.Member]
IN_ARCHIVES: dict[str, tuple[Callable[[Members], Members], tuple[str, ...]]] = {
    "a climbing name": (lambda h: [*h, member("a/../../x")], ("'../../x'", "manifest")),
    "an absolute name": (lambda h: [*h, member("/etc/x")], ("'/etc/x'", "manifest")),
    "a symbolic link": (
        lambda h: [*h, member("a/l", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
        ("'a/l'", "regular files"),
    ),
    "a device": (
        lambda h: [*h, member("a/d", type=tarfile.CHRTYPE)],
        ("'a/d'", "regular files"),
    ),
    "a header that asks for memory": (
        lambda h: [member("a/d", bytes(20_000_000), type=tarfile.XHDTYPE), *h],
        ("more bytes",),
    ),
    "a file of holes": (
        lambda h: [
            *h[:-1],
            member("a/repro.py", pax_headers={"GNU.sparse.size": str(2**40)}),
        ],
        ("'a/repro.py'", "regular files"),
    ),
    "a file twice": (lambda h: [*h, h[-1]], ("'repro.py'", "twice")),
    "a bomb": (_bomb, ("more bytes",)),
    "a missing file": (_without("a/repro.py"), ("'repro.py'", "missing")),
    "no manifest": (_without("a/manifest.json"), ("manifest", "unpack")),
    "nothing": (lambda h: [], ("manifest.json",)),
    "another file": (lambda h: [*h, member("a/x", b"x")], ("'x'", "manifest")),
    "a changed file": (
        lambda h: [*h[:-1], member("a/repro.py", b"print(2)\n")],
        ("repro.py", "sha256"),
    ),
}


@pytest.mark.parametrize("name", IN_ARCHIVES)
def test_a_spoilt_archive_is_refused(name: str, tmp_path: Path) -> None:
    change, tokens = IN_ARCHIVES[name]
    at = made_packs.rewritten(made_packs.archive(tmp_path / "a.tar.gz"), change)
    _assert_refused(at, tokens)
    assert sorted(os.listdir(tmp_path)) == ["a.tar.gz"]


def test_sound_packs_in_unusual_forms_are_used(tmp_path: Path) -> None:
    """In a sticky folder, written by tarfile, with fields of a newer version."""
    (tmp_path / "in").mkdir()
    folder = made_packs.folder(tmp_path / "in" / "a")
    folder.parent.chmod(0o1777)
    assert load(folder) == FILES
    _resealed(later={"x": 1})(folder)
    assert load(folder) == FILES
    archive = made_packs.archive(tmp_path / "a.tar.gz")
    assert load(made_packs.rewritten(archive, list)) == FILES


def test_an_archive_that_is_cut_off_or_none_is_refused(tmp_path: Path) -> None:
    at = made_packs.archive(tmp_path / "a.tar.gz")
    whole = at.read_bytes()
    for eighth in (1, 3, 5, 7):
        at.write_bytes(whole[: len(whole) * eighth // 8])
        _assert_refused(at, ("cut off",))
    at.write_bytes(whole + gzip.compress(bytes(2**25), 1))
    _assert_refused(at, ("more bytes",))
    for held in (b"", b"PK\x03\x04", b"\x1f\x8bnonsense" * 9):
        at.write_bytes(held)
        _assert_refused(at, ())
    with pytest.raises(UserError, match=os.strerror(errno.ENOENT)) as found:
        load(tmp_path / "nothing")
    assert not isinstance(found.value, packs.Refused)


# -- owners and keys -------------------------------------------------------------------


@pytest.mark.parametrize("make", [made_packs.folder, made_packs.archive])
def test_anothers_pack_is_used_with_its_key_alone(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at = make(tmp_path / "a.tar.gz", key=KEY)
    if os.geteuid():
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
    else:
        for path in (at, *(at.rglob("*") if at.is_dir() else ())):
            os.chown(path, 65534, 65534)
    with pytest.raises(packs.Refused, match=rf"user {at.stat().st_uid}\b.*\bkey\b"):
        load(at)
    load(at, PUBLIC)
    with pytest.raises(packs.Refused, match="signature"):
        load(at, OTHER_PUBLIC)
    if at.is_dir() and not os.geteuid():  # one file of another owner is enough
        at = made_packs.folder(tmp_path / "b")
        os.chown(at / "logs" / "torch", 65534, 65534)
        with pytest.raises(packs.Refused, match=r"logs/torch .*\b65534\b"):
            load(at)


def test_nobody_forges_a_pack_with_what_verifies_it(tmp_path: Path) -> None:
    at = made_packs.folder(tmp_path / "a", key=KEY)
    _resealed(target="evil")(at)
    load(at)  # this user made it, says the disk
    with pytest.raises(packs.Refused, match="signature"):
        load(at, PUBLIC)
    forged = (at / "manifest.json").read_bytes()
    with pytest.raises(UserError, match="private"):
        keys.signature(PUBLIC, forged)
    # What the former signatures were.
    digest = hmac.new(PUBLIC, forged, hashlib.sha256).hexdigest()
    (at / "manifest.sig").write_text(f"{digest}\n")
    with pytest.raises(packs.Refused, match=r"shared key.*--key"):
        load(at, PUBLIC)
    (at / "manifest.sig").write_bytes(keys.signature(OTHER_KEY, forged))
    with pytest.raises(packs.Refused, match="signature"):
        load(at, PUBLIC)


def test_a_signature_that_is_none_is_refused(tmp_path: Path) -> None:
    at = made_packs.folder(tmp_path / "a")
    with pytest.raises(packs.Refused, match="--key"):
        load(at, PUBLIC)
    at = made_packs.folder(tmp_path / "signed", key=KEY)
    for signature in (b"", b"\n", b"x" * 128, b"0" * 128, b"\xff" * 64, b"00" * 90):
        (at / "manifest.sig").write_bytes(signature)
        with pytest.raises(packs.Refused, match="sign"):
            load(at, PUBLIC)


def test_keys_of_openssl_and_of_ssh_keygen(tmp_path: Path) -> None:
    file, public = tmp_path / "ssh", tmp_path / "ssh.pub"
    key = serialization.load_pem_private_key(KEY, None)
    encoding, form = serialization.Encoding, serialization.PrivateFormat
    plain = serialization.NoEncryption()
    file.write_bytes(key.private_bytes(encoding.PEM, form.OpenSSH, plain))
    public.write_bytes(
        key.public_key().public_bytes(
            encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    file.chmod(0o600)
    public.chmod(0o644)
    at = made_packs.folder(tmp_path / "a", key=packs.read_key(file))
    assert load(at, packs.read_key(public)) == FILES
    load(at, PUBLIC)


def test_a_key_that_is_none_says_how_to_make_one(tmp_path: Path) -> None:
    encoding, form = serialization.Encoding, serialization.PrivateFormat
    locked = serialization.load_pem_private_key(KEY, None).private_bytes(
        encoding.PEM, form.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    for unusable in (b"", b"\n", b"0123456789abcdef" * 4, PUBLIC, locked):
        with pytest.raises(UserError):
            keys.private_key(unusable)
    at = made_packs.folder(tmp_path / "a", key=KEY)
    for unusable in (b"", b"0123456789abcdef" * 4, KEY):
        with pytest.raises(UserError, match="openssl") as raised:
            load(at, unusable)
        assert not isinstance(raised.value, packs.Refused)


def test_without_cryptography_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = made_packs.folder(tmp_path / "a", key=KEY)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    load(at)  # no key, no signature to verify
    for use in (lambda: load(at, PUBLIC), lambda: keys.private_key(KEY)):
        with pytest.raises(packs.Refused, match=r"torchproof\[sign\]"):
            use()


def test_key_files_are_checked_for_who_writes_and_reads_them(tmp_path: Path) -> None:
    file, public = tmp_path / "key", tmp_path / "pub"
    assert packs.read_key(None, {}) is None
    with pytest.raises(UserError, match=os.strerror(errno.ENOENT)):
        packs.read_key(file)
    file.write_bytes(KEY)
    public.write_bytes(PUBLIC)
    for path, mode in ((file, 0o644), (public, 0o666), (public, 0o664)):
        path.chmod(mode)
        with pytest.raises(UserError, match=f"chmod .* {path}"):
            packs.read_key(path)
    file.chmod(0o640)
    public.chmod(0o644)
    assert packs.read_key(file) == KEY
    assert packs.read_key(None, {"TORCHPROOF_PACK_KEY": str(public)}) == PUBLIC


# -- any bit ---------------------------------------------------------------------------


def test_a_file_changed_after_it_was_trusted_is_refused(tmp_path: Path) -> None:
    at = made_packs.folder(tmp_path / "a")
    contents = packs.open_pack(at)
    packs.assert_trusted(contents)
    (at / "repro.py").write_bytes(b"print(2)\n")
    with pytest.raises(packs.Refused, match=r"repro\.py .*sha256"):
        contents.read("repro.py")
    with pytest.raises(packs.Refused, match=r"repro\.py .*sha256"):
        contents.copy("repro.py", tmp_path / "copied")
    assert not (tmp_path / "copied").exists()


def test_any_changed_byte_is_refused(tmp_path: Path) -> None:
    at, chosen = made_packs.folder(tmp_path / "a"), random.Random(0)
    for name in (*(n for n in FILES if FILES[n]), *["manifest.json"] * 10):
        before = (at / name).read_bytes()
        place = chosen.randrange(len(before))
        value = before[place] ^ chosen.randrange(1, 256)
        changed = before[:place] + bytes([value]) + before[place + 1 :]
        (at / name).write_bytes(changed)
        with pytest.raises(packs.Refused):
            load(at)
        (at / name).write_bytes(before)
    load(at)
