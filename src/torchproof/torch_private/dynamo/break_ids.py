"""Torch's list of graph breaks, in which each kind has an id."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path


@functools.cache
def break_ids() -> Mapping[str, str]:
    """The id of each kind of graph break, by the name it has in a message.

    Empty without torch: a trace may be read where it is not installed.
    """
    spec = importlib.util.find_spec("torch")
    folder = Path(spec.origin).parent if spec and spec.origin else Path("/nowhere")
    registry = folder / "_dynamo/graph_break_registry.json"
    if not registry.exists():
        return {}
    kinds = json.loads(registry.read_text(encoding="utf-8")).items()
    return {e["Gb_type"].strip(): gb_id for gb_id, entries in kinds for e in entries}
