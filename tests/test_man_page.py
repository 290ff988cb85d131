"""The man page: what it contains, and what the checkers of man pages say to it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_text_cannot_become_a_macro() -> None:
    assert man_page._paragraph(".TH evil 'x") == r"\&.TH evil 'x"
    assert man_page._paragraph('a\\b --flag "c"') == r"a\eb \-\-flag \(dqc\(dq"
    long = man_page._paragraph("word " * 40 + ".so /etc/passwd")
    assert not re.search(r"^[.']", long, re.M)
