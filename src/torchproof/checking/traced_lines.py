"""Which lines of code Dynamo traced, recognised after edits that move them."""

from __future__ import annotations

import os

from torchproof.records import Finding, Observation, blame

# A line of code: its file, its function, its text without indentation.
Code = tuple[str, str, str]


def code_of(finding: Finding) -> Code:
    """The line that a finding is at."""
    file = os.path.realpath(finding.file or "")
    return file, finding.function or "", (finding.source or "").strip()


def traced_code(observation: Observation) -> set[Code]:
    """The lines that Dynamo traced."""
    return {
        (
            os.path.realpath(file),
            blame.plain_name(function),
            blame.source_line(file, line).strip(),
        )
        for file, functions in (observation.traced or {}).items()
        for function, lines in functions.items()
        for line in lines
    }
