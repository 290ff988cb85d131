"""What became of the CUDA graphs of a run, in one sentence."""

from __future__ import annotations

from torchproof.records import Run
from torchproof.report import numbers

# Counts that are told in the sentence; the others have a table, or a line.
NAMES = ("recordings", "replays", "pool_bytes", "kernel_share")
TOLD = tuple(f"cudagraph_{name}" for name in NAMES)


def captured(run: Run) -> str:
    """Empty where nobody watched, or nothing was to be captured."""
    recorded, replayed, pool, share = (run.counts.get(name) for name in TOLD)
    skipped = run.counts.get("cudagraph_skips")
    if recorded is None or not (recorded or replayed or skipped):
        return ""
    text = f"CUDA graphs: {recorded} recorded, {numbers.amount(replayed, 'replay')},"
    text += f" {numbers.amount(skipped, 'skip')}, {numbers.size(pool)} of memory"
    return text if share is None else f"{text}; {share:.0%} of a call's kernels"
