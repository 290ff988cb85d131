"""The page of a run with ranks in a real Chromium, small and dark."""

from __future__ import annotations

from pathlib import Path

import pytest
import rank_runs
from chromium import Browser
from test_html_page import PALE, opened

RUN = rank_runs.checked(rank_runs.short_last_batch())
LANES = """[...document.querySelectorAll('.lanes td > svg[role=img]')]
  .map((lane) => lane.querySelectorAll('.stall').length)"""


@pytest.mark.parametrize("width", [360, 1200])
def test_the_section_fits(window: Browser, tmp_path: Path, width: int) -> None:
    window.size(width)
    opened(window, RUN, tmp_path)
    assert window.run("document.documentElement.scrollWidth") == width
    assert window.run(LANES) == [2, 3]
    assert window.log("browser") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out(window: Browser, tmp_path: Path, scheme: str) -> None:
    window.prefer(scheme)
    opened(window, RUN, tmp_path)
    assert window.run(PALE) == []
