"""Events and source code in, findings out.

In: a target, or observations of it. Out: a `Run` with findings.
Start with `checker.py`; the rules are in `rules/`, source analysis in `static/`.
Imports `records`, `targets`, `observe`, `measure` and what those need.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.checking import budget as budget
    from torchproof.checking import latency_budget as latency_budget
    from torchproof.checking import rules as rules
    from torchproof.checking.budget import Budget as Budget
    from torchproof.checking.budget import Watch as Watch
    from torchproof.checking.budget import compiled_anything as compiled_anything
    from torchproof.checking.causes import explain as explain
    from torchproof.checking.checker import EFFORTS as EFFORTS
    from torchproof.checking.checker import check as check
    from torchproof.checking.counts import counts_of as counts_of
    from torchproof.checking.latency_budget import LatencyBudget as LatencyBudget
    from torchproof.checking.ranks import CheckedRanks as CheckedRanks
    from torchproof.checking.ranks import check_ranks as check_ranks
    from torchproof.checking.rules import RETIRED as RETIRED
    from torchproof.checking.rules import RULES as RULES
    from torchproof.checking.rules import by_code as by_code
    from torchproof.checking.rules import check_load as check_load
    from torchproof.checking.rules import parts_of as parts_of
    from torchproof.checking.rules import torch_pages as torch_pages
    from torchproof.checking.rules.rule import Rule as Rule
    from torchproof.checking.static.flow import Flow as Flow
    from torchproof.checking.static.kinds import Kind as Kind
    from torchproof.checking.static.kinds import words as words
    from torchproof.checking.static.program import Program as Program
    from torchproof.checking.static.source import Source as Source
    from torchproof.checking.static.source import Unreadable as Unreadable
else:
    __getattr__, __all__ = lazy_exports(__name__)
