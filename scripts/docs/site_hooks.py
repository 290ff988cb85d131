"""mkdocs hooks: README, CONTRIBUTING and CHANGELOG become pages of the site.

The source of each page lies beside it, for language models: llms.txt links to them.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        text = relinked((ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        copy = Path(config.site_dir) / path.relative_to(ROOT / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")


def relinked(text: str) -> str:
    """With links as seen from docs/: mkdocs reports what is left dangling."""
    text = re.sub(r"\]\(docs/", "](", text)
    for source, page in PAGES.items():
        text = text.replace(f"]({source}", f"]({page}")
    return text
