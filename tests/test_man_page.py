"""The man page: what it contains, and what the checkers of man pages say to it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command_line import FLAGS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "man" / "torchproof.1"
sys.path.insert(0, str(ROOT / "scripts" / "docs"))

import man_page  # noqa: E402

CHECKERS = {
    "man": ["--warnings", "--local-file"],
    "mandoc": ["-T", "lint", "-W", "style"],
}


def said(checker: str, page: Path) -> str:
    if shutil.which(checker) is None:
        assert "SHELLS_REQUIRED" not in os.environ, f"{checker} is not installed"
        pytest.skip(f"{checker} is not installed: scripts/shells installs it")
    done = subprocess.run(
        [checker, *CHECKERS[checker], page],
        env={**os.environ, "MANROFFOPT": "-ww", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if checker == "man" else done.stdout + done.stderr


@pytest.mark.parametrize("checker", CHECKERS)
def test_checker_finds_nothing(checker: str, tmp_path: Path) -> None:
    assert said(checker, PAGE) == ""
    broken = tmp_path / "torchproof.1"
    broken.write_text(PAGE.read_text() + ".XYZ unknown macro\n")
    assert said(checker, broken) != ""


def test_every_verb_and_flag_is_documented() -> None:
    text = man_page.page()
    for verb, flags in FLAGS.items():
        section = text.partition(f'.SS "torchproof {verb}')[2].partition("\n.SS ")[0]
        for flag in flags - {"-h", "--help", "--version"}:
            assert flag.replace("-", r"\-") in section, (verb, flag)


def test_text_cannot_become_a_macro() -> None:
    assert man_page._paragraph(".TH evil 'x") == r"\&.TH evil 'x"
    assert man_page._paragraph('a\\b --flag "c"') == r"a\eb \-\-flag \(dqc\(dq"
    long = man_page._paragraph("word " * 40 + ".so /etc/passwd")
    assert not re.search(r"^[.']", long, re.M)


def test_wheel_installs_the_man_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    files = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    installed = files[PAGE.relative_to(ROOT).as_posix()]
    assert installed == "share/man/man1/torchproof.1"
