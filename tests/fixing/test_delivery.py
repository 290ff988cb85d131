"""`fix --write`: the user's files are edited completely, or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fix_runs import edit, run_of, setting

from torchproof.cli import fix_and_pack
from torchproof.cli.commands import Fix as FixCommand
from torchproof.fixing import delivery
from torchproof.fixing.delivery import deliver
from torchproof.fixing.edits import unified
from torchproof.records import Fix, Mark, Setting, is_own

BEFORE = "import torch\n\n\ndef step(x):\n    return x.item()  # read\n"
AFTER = BEFORE.replace("x.item()", "x")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.py"
    path.write_text(BEFORE)
    return path


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}


def test_a_verified_fix_is_applied_and_says_where(file: Path) -> None:
    run = deliver(run_of(edit(file, AFTER)), write=True)
    [fix] = run.fixes
    assert (fix.status, fix.written_to, run.error) == ("applied", "model.py", None)
    assert file.read_text() == AFTER
    assert not leftovers(file.parent)


def test_a_diff_of_files_elsewhere_says_where_patch_applies_it(
    file: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "parts").mkdir()
    files = [folder / "model.py", folder / "parts" / "model.py"]
    for each in files:
        each.write_text(BEFORE)
    after = {str(each): AFTER for each in files}
    diff = unified(after, dict.fromkeys(after, BEFORE))
    assert diff.startswith(f"apply in {folder}:\n--- a/model.py\n")
    subprocess.run(["patch", "-p1"], cwd=folder, input=diff, text=True, check=True)
    assert {each.read_text() for each in files} == {AFTER}
    inside = unified({str(file): AFTER}, {str(file): BEFORE})
    assert inside.startswith("--- a/model.py\n")


def test_without_write_or_proof_nothing_changes(file: Path) -> None:
    run = run_of(edit(file, AFTER))
    assert deliver(run) == run
    rejected = run_of(edit(file, AFTER, status="rejected"))
    assert deliver(rejected, write=True) == rejected
    deliver(run_of(setting(Setting("compile.dynamic", True))), write=True)
    assert file.read_text() == BEFORE


@pytest.mark.parametrize(
    ("before", "encoding"),
    [
        ("# -*- coding: latin-1 -*-\n# \xe4\n" + BEFORE, "latin-1"),
        (BEFORE, "utf-8-sig"),
    ],
)
def test_mode_line_endings_and_encoding_stay(
    before: str, encoding: str, file: Path
) -> None:
    before = before.replace("\n", "\r\n")
    file.write_bytes(before.encode(encoding))
    file.chmod(0o750)
    after = before.replace("x.item()", "x")
    deliver(run_of(edit(file, after)), write=True)
    assert file.read_bytes() == after.encode(encoding)
    assert stat.S_IMODE(file.stat().st_mode) == 0o750


def test_fixes_of_one_file_are_applied_together(file: Path) -> None:
    first = edit(file, AFTER)
    file.write_text(AFTER)
    last = AFTER.replace("def step", "# faster\ndef step")
    second = edit(file, last)
    file.write_text(BEFORE)
    deliver(run_of(first, second), write=True)
    assert file.read_text() == last


@pytest.fixture
def two(file: Path) -> tuple[Path, Path]:
    other = file.with_name("other.py")
    other.write_text(BEFORE)
    return other, file


def test_a_file_that_changed_is_refused_and_no_other_is_written(
    two: tuple[Path, Path],
) -> None:
    other, file = two
    run = run_of(edit(other, AFTER), edit(file, AFTER))
    file.chmod(0o444)
    error = deliver(run, write=True).error
    assert error == "model.py is read-only: nothing was written"
    file.chmod(0o644)
    file.write_text(BEFORE + "\n# edited meanwhile\n")
    run = deliver(run, write=True)
    assert run.error is not None and "model.py has changed" in run.error
    assert other.read_text() == BEFORE
    assert {fix.status for fix in run.fixes} == {"verified"}


def test_a_link_stays_one_and_leads_nowhere_else(
    file: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "model.py"
    outside.write_text(BEFORE)
    real = file.rename(file.with_name("real.py"))
    file.symlink_to(outside)
    run = deliver(run_of(edit(file, AFTER)), write=True)
    assert run.error is not None and "is a link to" in run.error
    assert outside.read_text() == BEFORE
    file.unlink()
    file.symlink_to("real.py")
    deliver(run_of(edit(file, AFTER)), write=True)
    assert file.is_symlink() and real.read_text() == AFTER


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()]
)
def test_a_failure_in_the_middle_puts_all_files_back(
    error: BaseException, two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    put, seen = os.replace, list[str]()

    def fails_at_second(source: str, dest: str) -> None:
        seen.append(dest)
        if len(seen) == 2:
            raise error
        put(source, dest)

    run = run_of(*(edit(path, AFTER) for path in two))
    monkeypatch.setattr(delivery.os, "replace", fails_at_second)
    if isinstance(error, OSError):
        assert "No space left" in (deliver(run, write=True).error or "")
    else:
        with pytest.raises(KeyboardInterrupt):
            deliver(run, write=True)
    assert [path.read_text() for path in two] == [BEFORE, BEFORE]
    assert not leftovers(two[0].parent)


@pytest.mark.parametrize(
    ("mark", "code"), [((), 0), ((Mark("x", 0, "mark_dynamic"),), 1)]
)
def test_write_exits_1_only_if_a_verified_fix_is_not_applied(
    mark: tuple[Mark, ...],
    code: int,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    marked = [replace(setting(Setting("dynamic", True)), settings=(), marks=mark)]
    run = deliver(run_of(edit(file, AFTER), *(marked if mark else ())), write=True)
    assert [fix.status for fix in run.fixes] == ["applied", *(["verified"] * code)]
    assert all(fix.why for fix in run.fixes if fix.status == "verified")
    monkeypatch.setattr(fix_and_pack.output, "show", lambda run, options: None)
    options = FixCommand(target="model.py:make", write=True)
    assert fix_and_pack._show_fixes(run, options) == code
    assert bool(capsys.readouterr().err) is bool(code)


@pytest.fixture
def installed(file: Path) -> Path:
    path = file.parent / "site-packages" / "lib" / "model.py"
    path.parent.mkdir(parents=True)
    path.write_text(BEFORE)
    return path


def test_libraries_and_torchproof_itself_are_never_edited(
    file: Path, installed: Path
) -> None:
    run = deliver(run_of(edit(installed, AFTER), edit(file, AFTER)), write=True)
    assert [fix.status for fix in run.fixes] == ["verified", "applied"]
    assert installed.read_text() == BEFORE
    assert is_own(str(file)) and not is_own(str(installed))
    link = file.with_name("linked.py")
    link.symlink_to(installed)
    assert not is_own(str(link))
    assert not is_own(delivery.__file__)


def test_what_is_written_alone_is_checked(file: Path, installed: Path) -> None:
    run = run_of(edit(installed, AFTER), edit(file, AFTER))
    checked: list[Sequence[Fix]] = []

    def check(fixes: Sequence[Fix], patches: Path | None) -> str | None:
        checked.append(fixes)
        return "GB101 is still there" if len(checked) == 1 else None

    refused = deliver(run, write=True, check=check)
    assert refused.error == (
        "nothing was written: with only these fixes, GB101 is still there"
    )
    assert file.read_text() == BEFORE and checked == [[run.fixes[1]]]
    assert deliver(run, write=True, check=check).fixes[1].status == "applied"
    assert file.read_text() == AFTER
