"""The options for running a target, which all verbs share."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchproof.records import Keywords


@dataclass(frozen=True)
class Options:
    """The options for running a target, which all verbs share."""

    compile: Keywords = field(default_factory=dict)
    as_written: bool = False
    train: bool = False
    device: str | None = None
    size: str | None = None
    timeout_s: float | None = None
    quiet: bool = False
    overlay: str | None = None  # the file of an overlay, for children to apply
