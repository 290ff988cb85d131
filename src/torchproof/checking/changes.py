"""What is different between two checks of a target whose source was edited meanwhile.

A finding is resolved, new, or was hidden before: an earlier finding had kept Dynamo
from tracing its line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchproof.checking import history, source_reading
from torchproof.checking.traced_lines import Code, code_of, traced_code
from torchproof.records import Finding, Observation, Run, blame
from torchproof.targets import Target


@dataclass(frozen=True)
class SeenSource:
    """The source of a target as a check saw it: the texts, and what Dynamo traced.

    `traced` is None if the check did not observe that. It includes library code,
    `texts` only the user's files, by their real path.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    traced: frozenset[Code] | None = None

    @classmethod
    def of(cls, target: Target, observation: Observation) -> SeenSource:
        if observation.traced is None:
            return cls()
        ran = (*observation.compiled, *observation.traced)
        files = {*map(str, source_reading.files_of(target))}
        files |= {file for file in ran if blame.is_own(file)}
        texts = {os.path.realpath(f): "".join(blame.lines_of(f)) for f in files}
        return cls(texts, frozenset(traced_code(observation)))

    def to_json(self) -> dict[str, Any]:
        traced = None if self.traced is None else sorted(self.traced)
        return {"texts": dict(self.texts), "traced": traced}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> SeenSource:
        traced = plain["traced"]
        if traced is not None:
            traced = frozenset((file, name, text) for file, name, text in traced)
        return cls(plain["texts"], traced)

    def hid(self, finding: Finding) -> bool:
        """Whether the line of a finding was there, and Dynamo did not trace it."""
        code = code_of(finding)
        file, _, text = code
        if self.traced is None or code in self.traced or not text:
            return False
        if file not in self.texts:
            return not blame.is_own(file)  # only the user's files were edited
        return text in {line.strip() for line in self.texts[file].splitlines()}


@dataclass(frozen=True)
class Changes:
    """The open findings that an earlier check did not have, and those that are gone."""

    resolved: tuple[Finding, ...] = ()
    new: tuple[Finding, ...] = ()
    hidden: tuple[Finding, ...] = ()  # by an earlier finding
    unchanged: int = 0  # open findings that both have


def changes_since(before: Run, run: Run, seen: SeenSource) -> Changes:
    """What a check shows that an earlier one, of the source in `seen`, did not."""
    appeared = history.appeared(before, run)
    still_open = sum(finding.status == "open" for finding in run.findings)
    return Changes(
        resolved=tuple(f for f in run.findings if f.status == "resolved"),
        new=tuple(f for f in appeared if not seen.hid(f)),
        hidden=tuple(f for f in appeared if seen.hid(f)),
        unchanged=still_open - len(appeared),
    )
