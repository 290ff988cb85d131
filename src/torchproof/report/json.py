"""A run as exactly one JSON document (schema 1)."""

from __future__ import annotations

import json

from torchproof.records import Run


def render(run: Run) -> str:
    return json.dumps(run.to_json(), indent=1) + "\n"
