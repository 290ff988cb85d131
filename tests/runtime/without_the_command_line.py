"""A program's first import: whatever only the command line needs cannot be imported."""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

ABSENT = {"detect_secrets", "jinja2", "libcst", "mcp", "ray", "rich", "transformers"}


class _Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"no module {fullname} in production")


sys.meta_path.insert(0, _Absent())
