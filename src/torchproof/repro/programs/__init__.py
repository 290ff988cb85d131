"""Drafts made of a target's own source, and how they are made small and nameless.

`whole` cuts a program out of its files without running it. `frames`, which needs torch,
takes the function that fails out of a running program.
"""

from __future__ import annotations

from torchproof.repro.programs.merging import Unsuitable
from torchproof.repro.programs.naming import anonymous
from torchproof.repro.programs.reducing import reduced
from torchproof.repro.programs.whole import as_it_is, program_draft

__all__ = ["Unsuitable", "anonymous", "as_it_is", "program_draft", "reduced"]
