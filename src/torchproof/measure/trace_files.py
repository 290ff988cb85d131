"""Graphs and generated code out of a folder that TORCH_TRACE wrote, as files."""

from __future__ import annotations

import re
from pathlib import Path

from torchproof.observe import read_folder
from torchproof.records import UserError

# What torch records, and the name of the file that shows it.
_KEPT = {
    "dynamo_output_graph": "graph",
    "aot_joint_graph": "joint-graph",
    "aot_forward_graph": "forward-graph",
    "aot_backward_graph": "backward-graph",
    "inductor_output_code": "generated",
}


def write_code(trace: Path, folder: Path) -> list[Path]:
    """One file a graph and piece of generated code, named by its compilation."""
    try:
        records = read_folder(trace)
    except (OSError, UserError):  # nothing was compiled
        return []
    written: list[Path] = []
    for record in records:
        for name in _KEPT.keys() & record.metadata.keys():
            frame = record.metadata.get("frame_id")
            stem = f"{frame}-{record.metadata.get('frame_compile_id')}-{_KEPT[name]}"
            path = folder / f"{re.sub(r'[^0-9A-Za-z.-]', '_', stem)}.py"
            number = 2
            while path in written:
                path = path.with_name(f"{path.stem.split('~')[0]}~{number}.py")
                number += 1
            path.write_text(record.payload + "\n", encoding="utf-8")
            written.append(path)
    return written
