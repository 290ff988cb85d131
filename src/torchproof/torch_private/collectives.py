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

from torchproof.records import JsonObject

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
    is_p2p: bool = False


def recorded_collectives() -> Iterator[Collective]:
    """The collectives in the recorder's buffer, oldest first: about 30 us for each."""
    recorder: Any = importlib.import_module("torch._C._distributed_c10d")
    # Without stacks: the first stack that torch names costs seconds.
    dump = pickle.loads(recorder._dump_fr_trace(True, False, False))
    groups = dump.get("pg_config", {})
    for entry in dump.get("entries", ()):
        yield _collective(entry, groups)


def _collective(entry: JsonObject, groups: JsonObject) -> Collective:
    name, description = entry["process_group"]
    completed_ns = entry["time_discovered_completed_ns"]
    return Collective(
        record=int(entry["record_id"]),
        name=entry["profiling_name"].rpartition(":")[2],
        group=_shown(name, description),
        number=int(entry["collective_seq_id"]),
        members=_members(name, groups),
        created_s=entry["time_created_ns"] / 1e9,
        completed_s=completed_ns / 1e9 if completed_ns else None,
        ended=bool(entry["retired"]),
        is_p2p=bool(entry["is_p2p"]),
    )


def _shown(name: str, description: str) -> str:
    if description in ("", "undefined"):
        return name
    # All groups of one dimension of a mesh have the same description.
    return description if description == "default_pg" else f"{description} {name}"


# The ranks of groups by name, also of those that were destroyed since.
_ranks_of: dict[str, tuple[int, ...]] = {}


def _members(name: str, groups: JsonObject) -> tuple[int, ...]:
    """The ranks of a group.

    Gloo records them before the group has its name, and only those of the first group.
    """
    if name not in _ranks_of:
        c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
        for group, own in list(c10d._world.pg_names.items()):
            _ranks_of[own] = tuple(sorted(c10d._world.pg_group_ranks.get(group, ())))
    if name in _ranks_of:
        return _ranks_of[name]
    config = groups.get(name) or groups.get("", {})
    return tuple(json.loads(config.get("ranks") or "[]"))
