"""What the parent sends to the process of a proof, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from torchproof.records import Record
from torchproof.targets import Job

NOT_FRESH = 75  # the exit code of a job that edits a file which is already imported


@dataclass(frozen=True)
class ProofJob(Record):
    """A target, perhaps with an overlay or patches, and the file of the reference."""

    run: Job
    reference: str
    backend: str | None = None  # of compiled outputs; None: chosen by the reference
    patches: str | None = None  # a patch folder, installed before the target is loaded
    probes: bool = False  # only run it in eager mode, and send what probes record
    screens: bool = False  # compile only the first call


@dataclass(frozen=True)
class Equality(Record):
    """Whether an edited target does what the original does.

    `problems` are differences that no fix may have; `unsafe` are those that only an
    unsafe fix may have: another random stream, or text that is not printed.
    `undecided` says why values cannot be compared at all.
    """

    backend: str
    verdict: str
    max_rel_error: float | None
    compared: int
    unseen: int
    exceptions: int
    problems: tuple[str, ...] = ()
    unsafe: tuple[str, ...] = ()
    undecided: str | None = None
