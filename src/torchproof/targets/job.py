"""One run of a target in a child process: what the parent sends, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchproof.records import Keywords, Record
from torchproof.records.options import Options
from torchproof.targets.target import Target, own_file


@dataclass(frozen=True)
class Job(Record):
    """A target, and how a child process loads, compiles and calls it."""

    target: Target
    train: bool = False
    device: str | None = None
    size: str | None = None  # of a workload
    dtype: str | None = None
    shape: Mapping[str, int] = field(default_factory=dict)  # {"batch": 4}
    compile: Keywords = field(default_factory=dict)  # for torch.compile
    as_written: bool = False
    generates_code: bool = False  # an observed Inductor compile is not stopped
    overlay: str | None = None  # the file of edits that are applied in memory
    text_models: bool = False  # the factory may return a model without calls
    wrap: str | None = None  # on several ranks: one of `WRAPS`
    on_rank: bool = False  # one of several, which variables of the launcher describe
    in_shares: bool = False  # a rank creates only its share of a workload's weights

    @property
    def source_file(self) -> Path | None:
        """The file of the user's target; a workload is part of torchproof."""
        return None if self.target.kind == "workload" else own_file(self.target)

    @classmethod
    def of(cls, target: Target, options: Options) -> Job:
        return cls(
            target,
            train=options.train,
            device=options.device,
            size=options.size,
            compile=options.compile,
            as_written=options.as_written,
            overlay=options.overlay,
        )
