"""One sentence about the CUDA graphs of a run: recordings, replays, skips, memory."""

from __future__ import annotations

from torchproof.records import Run
from torchproof.report import numbers

# The counts in this sentence; reports show the others in a table or a line.
NAMES = ("recordings", "replays", "pool_bytes", "kernel_share")
TOLD = tuple(f"cudagraph_{name}" for name in NAMES)


def captured(run: Run) -> str:
    """Empty if CUDA graphs were not observed, or there were none."""
    recorded, replayed, pool, share = (run.counts.get(name) for name in TOLD)
    skipped = run.counts.get("cudagraph_skips")
    if recorded is None or not (recorded or replayed or skipped):
        return ""
    text = f"CUDA graphs: {recorded} recorded, {numbers.amount(replayed, 'replay')},"
    text += f" {numbers.amount(skipped, 'skip')}, {numbers.size(pool)} of memory"
    if share is None:
        return text
    return f"{text}; they launch {share:.0%} of a call's kernels"
