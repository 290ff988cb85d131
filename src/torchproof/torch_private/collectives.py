"""Collectives of this process, from torch's flight recorder.

The recorder sees every collective of every process group, also those that DDP starts in
C++. It does not change what is called, so compiled code is traced as without it.
"""

from __future__ import annotations

import importlib
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

BUFFER_VARIABLE = "TORCH_FR_BUFFER_SIZE"  # read when the first group is created


@dataclass(frozen=True)
class Collective:
    """One collective; times are those of `time.time`, None where torch has none."""

    record: int  # its number in this process
    name: str  # all_reduce
    group: str
    number: int  # in its group: the same on all ranks
    members: tuple[int, ...]
    created_s: float
    completed_s: float | None
    ended: bool


def recorded_collectives() -> Iterator[Collective]:
    """The collectives in the recorder's buffer, oldest first: about 30 us for each."""
    recorder: Any = importlib.import_module("torch._C._distributed_c10d")
    # Without stacks: the first stack that torch names costs seconds.
    dump = pickle.loads(recorder._dump_fr_trace(True, False, False))
    groups = dump.get("pg_config", {})
    for entry in dump.get("entries", ()):
        if not entry["is_p2p"]:
            yield _collective(entry, groups)


def _collective(entry: dict[str, Any], groups: dict[str, Any]) -> Collective:
    name, description = entry["process_group"]
    config = groups.get(name) or groups.get("", {})
    completed_ns = entry["time_discovered_completed_ns"]
    return Collective(
        record=int(entry["record_id"]),
        name=entry["profiling_name"].rpartition(":")[2],
        group=description if description not in ("", "undefined") else name,
        number=int(entry["collective_seq_id"]),
        members=tuple(json.loads(config.get("ranks") or "[]")),
        created_s=entry["time_created_ns"] / 1e9,
        completed_s=completed_ns / 1e9 if completed_ns else None,
        ended=bool(entry["retired"]),
    )
