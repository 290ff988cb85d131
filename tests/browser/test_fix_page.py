"""The page of fixes in a real Chromium: diffs, copying, small and dark."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import Browser
from fix_runs import edit, run_of, setting
from test_html_page import PALE, opened

from torchproof.records import Run, Setting

LONG = "    y = x.item()  # " + "long " * 60
BEFORE = f"def step(x):\n{LONG}\n    return y\n"


def fixed(folder: Path) -> Run:
    file = folder / "model.py"
    file.write_text(BEFORE)
    flag = setting(Setting("dynamo.capture_scalar_outputs", True))
    return run_of(edit(file, BEFORE.replace("x.item()", "x")), flag)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_diffs_fit_the_window(
    window: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    window.size(width)
    window.prefer(scheme)
    opened(window, fixed(tmp_path), tmp_path)
    assert window.run("document.documentElement.scrollWidth") == width
    kinds = "[...document.querySelectorAll('.diff span')].map((e) => e.className)"
    assert [k for k in window.run(kinds) if k in ("added", "removed")] == [
        "removed",
        "added",
    ]
    assert window.run(PALE) == []
    assert window.log("browser") == []


def test_a_removed_line_is_marked_to_its_end(window: Browser, tmp_path: Path) -> None:
    opened(window, fixed(tmp_path), tmp_path)
    widths = "[document.querySelector('.diff .removed').getBoundingClientRect().width"
    widths += ", document.querySelector('.diff').scrollWidth]"
    line, whole = window.run(widths)
    assert line > whole - 40
