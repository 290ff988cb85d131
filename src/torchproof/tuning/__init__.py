"""Search for the fastest safe strategy within a time budget.

In: a target, an objective and a budget. Out: a `Run` with all trials, and the recipe.
Start with `tuner.py`, then `search.py`.
Imports `records`, `process`, `targets`, `strategies` and `measure`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.records.objective import Objective as Objective
    from torchproof.records.options import TuneOptions as TuneOptions
    from torchproof.tuning.tuner import tune as tune
else:
    __getattr__, __all__ = lazy_exports(__name__)
