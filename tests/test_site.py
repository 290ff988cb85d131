"""The documentation as a website: mkdocs builds it without a warning or the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
# Attributes through which a page loads something when it is opened.
LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]* src=\"(https?:[^\"]+)"
    r"|<link[^>]* rel=\"(?:stylesheet|preconnect|icon)\"[^>]* href=\"(https?:[^\"]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_every_document_is_a_page(site: Path) -> None:
    pages = {
        path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    pages |= {"index.html", "contributing.html", "changelog.html"}
    assert {page for page in pages if not (site / page).is_file()} == set()


@pytest.mark.slow
def test_pages_load_nothing_from_the_network(site: Path) -> None:
    loaded = {
        (path.name, *match)
        for path in site.rglob("*.html")
        for match in LOADED.findall(path.read_text(encoding="utf-8"))
    }
    assert loaded == set()


def test_dead_links_and_anchors_are_errors() -> None:
    """Warnings, which are errors in strict mode."""
    text = re.sub(r"!!python/\S+ \{.*\}", "null", (ROOT / "mkdocs.yml").read_text())
    links = yaml.safe_load(text)["validation"]["links"]
    assert links["not_found"] == links["anchors"] == "warn"
