"""Keys that anybody has, groups of one user, and files that are gone meanwhile."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import tarfile
from pathlib import Path

import made_packs
import pytest

from torchproof import packs
from torchproof.runtime.pack_format import trust

ANN = pwd.struct_passwd(("ann", "x", 1500, 1500, "", "/home/ann", "/bin/sh"))
BOB = pwd.struct_passwd(("bob", "x", 1501, 1500, "", "/home/bob", "/bin/sh"))


@pytest.mark.parametrize(
    ("accounts", "members", "named", "listed", "others"),
    [
        ([ANN], [], "ann", [], False),
        ([ANN], ["ann"], "ann", [], False),
        ([ANN], ["bob"], "ann", [], True),
        ([ANN, BOB], [], "ann", [], True),
        ([ANN], [], "staff", [], True),
        ([ANN], [], "ann", ["system.posix_acl_access"], True),
    ],
)
def test_a_group_of_one_user_is_no_other(
    accounts: list[pwd.struct_passwd],
    members: list[str],
    named: str,
    listed: list[str],
    others: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    pack = made_packs.folder(project / "p")
    project.chmod(0o775)
    gid = project.stat().st_gid
    ours = [pwd.struct_passwd((*a[:3], gid, *a[4:])) for a in accounts]
    group = grp.struct_group((named, "x", gid, members))
    monkeypatch.setattr(trust.pwd, "getpwuid", lambda uid: ours[0])
    monkeypatch.setattr(trust.pwd, "getpwall", lambda: ours)
    monkeypatch.setattr(trust.grp, "getgrgid", lambda gid: group)
    monkeypatch.setattr(trust.os, "listxattr", lambda path: listed)
    contents = packs.open_pack(pack)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner or 1500)
    if others:
        with pytest.raises(packs.Refused, match=f"chmod go-w {project}"):
            trust.assert_origin(contents)
    else:
        trust.assert_origin(contents)


def test_roots_group_is_that_of_others(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has root's group for its own")
    tmp_path.chmod(0o775)
    assert trust.others_write(tmp_path)


def test_a_file_that_is_gone_or_not_readable_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = made_packs.folder(tmp_path / "p")
    contents = packs.open_pack(pack)
    (pack / "repro.py").unlink()
    with pytest.raises(packs.Refused, match=r"repro\.py"):
        packs.assert_trusted(contents)
    with pytest.raises(packs.Refused, match=r"'repro\.py'"):
        contents.read("repro.py")

    def deny(path: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(packs.Refused, match="Permission denied"):
        packs.open_pack(pack)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_archive_by_hand_has_to_begin_with_its_manifest(
    form: int, tmp_path: Path
) -> None:
    pack = made_packs.folder(tmp_path / ("p" * 120))
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz", format=form) as tar:
        for name in ("manifest.json", *made_packs.FILES):
            tar.add(pack / name, f"{pack.name}/{name}")
    packs.assert_trusted(packs.open_pack(archive))
    with tarfile.open(archive, "w:gz", format=form) as tar:
        for name in (*made_packs.FILES, "manifest.json"):
            tar.add(pack / name, f"{pack.name}/{name}")
    with pytest.raises(packs.Refused, match="unpack"):
        packs.open_pack(archive)
