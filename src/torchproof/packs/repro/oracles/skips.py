"""Recognises CUDA graphs that torch skips or re-records."""

from __future__ import annotations

import logging

from torchproof.packs.repro.oracles.error_text import without_values
from torchproof.packs.repro.oracles.prelude import NONE, OTHER, SAME

_SKIPS = "torch._inductor.cudagraph_utils.__cudagraphs"
_RECORDINGS = "torch._inductor.cudagraph_trees.__cudagraphs"


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def run_oracle(program, expected):
    """Expects torch's `reason` for a skip, or the number of `recordings` of a graph."""
    handler = Lines()
    logs = [logging.getLogger(name) for name in (_SKIPS, _RECORDINGS)]
    levels = [log.level for log in logs]
    for log in logs:
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
    try:
        program.run_compiled(mode="reduce-overhead")
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.removeHandler(handler)
            log.setLevel(level)
    if expected.get("recordings"):
        return check_recordings(handler.lines, expected)
    skips = [line for line in handler.lines if "skipping cudagraphs" in line]
    if any(reason_in(line) == reason_in(expected["reason"]) for line in skips):
        return SAME, f"torch says: {skips[0].splitlines()[0]}"
    if skips:
        return OTHER, f"skipped for another reason: {skips[0].splitlines()[0]}"
    return NONE, "torch skips no CUDA graph"


def check_recordings(lines, expected):
    recordings = sum("Recording function" in line for line in lines)
    numbers = f"{recordings} recordings of CUDA graphs"
    if recordings >= expected["recordings"]:
        return SAME, numbers
    return NONE, f"{numbers}, {expected['recordings']} are stated"


def reason_in(line):
    """Returns the reason without stack and numbers."""
    first = line.strip().splitlines()[0].split(" Found from")[0]
    return without_values(first.rpartition("skipping cudagraphs due to ")[2])
