"""Candidates made of a target's own source, and how they are made small and nameless.

`whole` cuts a program out of its files without running it. `frames`, which needs torch,
takes the function that fails out of a running program.
"""

from __future__ import annotations

from torchproof.packs.repro.programs.anonymise import anonymous
from torchproof.packs.repro.programs.file_merger import Unsuitable
from torchproof.packs.repro.programs.program_reducer import reduced
from torchproof.packs.repro.programs.whole_program import as_it_is, program_candidate

__all__ = ["Unsuitable", "anonymous", "as_it_is", "program_candidate", "reduced"]
