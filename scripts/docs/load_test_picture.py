"""Draws docs/assets/loadtest.png, the chart of a real load test, with Chromium.

    python scripts/docs/load_test_picture.py [benchmarks/results/load-tests/ROW.json]

The default is the first row that was measured. `scripts/chromium` installs the browser.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

import chromium

from benchmarks.load_tests import ROWS, SURVEY
from torchproof.records import Run
from torchproof.report import render

PICTURE = ROOT / "docs" / "assets" / "loadtest.png"
WIDTH = 1200
_PLACE = """(() => {
  const box = document.getElementById('timeline').getBoundingClientRect();
  const margin = 10;
  return {x: box.x - margin, y: box.y + scrollY - margin,
    width: box.width + 2 * margin, height: box.height + 2 * margin};
})()"""


def first_row() -> Path:
    folder = SURVEY.path()
    paths = [folder / f"{name}-{d}.json" for d in ("cuda", "cpu") for name in ROWS]
    return next(path for path in paths if path.exists())


def draw(saved: Path) -> None:
    run = Run.from_json(json.loads(saved.read_text()))
    with tempfile.TemporaryDirectory() as folder, chromium.browser() as window:
        page = Path(folder) / "load.html"
        page.write_text(render(run, "html"), encoding="utf-8")
        window.size(WIDTH)
        window.prefer("light")
        window.open(page)
        window.picture(PICTURE, part=window.run(_PLACE))


if __name__ == "__main__":
    if why := chromium.missing():
        sys.exit(why)
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else first_row())
    print(f"written: {PICTURE.relative_to(ROOT)}")
