"""A library as pip installs it, and scripts that use it."""

from __future__ import annotations

import textwrap
from pathlib import Path


def install(folder: Path, text: str) -> Path:
    """The file of the package `fakelib`, in a folder named as pip names it."""
    file = folder / "site-packages" / "fakelib" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def script(library: Path, body: str, name: str = "script") -> Path:
    """A script of the user beside `site-packages`, which imports the library."""
    head = f"import sys\nsys.path.insert(0, {str(library.parents[1])!r})\n"
    path = library.parents[2] / f"{name}.py"
    path.write_text(head + "import torch\nimport fakelib\n" + textwrap.dedent(body))
    return path
