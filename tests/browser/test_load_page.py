"""The page of a load test in a real Chromium: charts, small and dark."""

from __future__ import annotations

from pathlib import Path

import load_runs
import pytest
from chromium import Browser
from test_html_page import PALE, opened

# Words of a chart that lie over each other, or out of the window.
CLASHES = """(() => {
  const found = [];
  const clash = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 &&
    a.top < b.bottom - 4 && b.top < a.bottom - 4;
  for (const chart of document.querySelectorAll('.plot svg, .strips td > svg')) {
    const boxes = [...chart.querySelectorAll(':scope > text')]
      .map((word) => [word.textContent, word.getBoundingClientRect()]);
    found.push(...boxes.filter(([, b]) => b.left < 0 || b.right > innerWidth));
    for (const [i, [, a]] of boxes.entries())
      for (const other of boxes.slice(i + 1))
        if (clash(a, other[1])) found.push(other);
  }
  return found.map(([name]) => name);
})()"""
# The centre of the mark of request 700 and the left end of its stall, in pixels.
STALLED = """(() => {
  const panel = document.querySelector('.panel');
  const marks = [...panel.querySelectorAll('.is-culprit')];
  const mark = marks.find((m) => m.textContent.includes('request 700,'));
  const box = mark.querySelector('path').getBoundingClientRect();
  const bands = [...panel.querySelectorAll('.band')];
  const band = bands.find((b) => b.textContent.includes('request 700'));
  return [box.x + box.width / 2, band.getBoundingClientRect().x];
})()"""


@pytest.mark.parametrize("width", [360, 1200])
def test_charts_fit_and_their_words_do_not_touch(
    window: Browser, tmp_path: Path, width: int
) -> None:
    window.size(width)
    for results in (None, [load_runs.searched(), load_runs.generating()]):
        opened(window, load_runs.run(results), tmp_path)
        assert window.run(CLASHES) == []
        assert window.run("document.documentElement.scrollWidth") == width
        assert window.log("browser") == []


def test_a_culprit_stands_at_the_begin_of_its_stall(
    window: Browser, tmp_path: Path
) -> None:
    opened(window, load_runs.run(), tmp_path)
    mark, band = window.run(STALLED)
    assert abs(mark - band) < 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_of_a_load_test_stand_out(
    window: Browser, tmp_path: Path, scheme: str
) -> None:
    window.prefer(scheme)
    opened(window, load_runs.run(), tmp_path)
    assert window.run(PALE) == []


def test_every_chart_has_a_name(window: Browser, tmp_path: Path) -> None:
    opened(window, load_runs.run(), tmp_path)
    tree = window.cdp("Accessibility.getFullAXTree")["nodes"]
    images = [
        node["name"]["value"]
        for node in tree
        if not node.get("ignored") and node["role"]["value"] in ("image", "img")
    ]
    assert len(images) == 6 and all("p50" in name for name in images)
