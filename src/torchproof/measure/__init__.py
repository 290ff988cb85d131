"""Measure strategies side by side and say which difference is significant.

In: a target and strategies. Out: measurements with numerics and verdicts, and the
comparison of two runs. Start with `specs.py`, then `session.py`.
Imports `records`, `process`, `targets`, `observe`, `strategies` and `torch_private`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.measure import bench_plan as bench_plan
    from torchproof.measure import comparison as comparison
    from torchproof.measure import loadtest as loadtest
    from torchproof.measure import numerics as numerics
    from torchproof.measure import rows as rows
    from torchproof.measure import starts as starts
    from torchproof.measure.comparison import PATH_SUFFIXES as PATH_SUFFIXES
    from torchproof.measure.comparison import TIMING_CONDITIONS as TIMING_CONDITIONS
    from torchproof.measure.comparison import Comparison as Comparison
    from torchproof.measure.comparison import compare as compare
    from torchproof.measure.comparison.decisions import Decision as Decision
    from torchproof.measure.comparison.decisions import decision as decision
    from torchproof.measure.comparison.decisions import (
        exclusion_reason as exclusion_reason,
    )
    from torchproof.measure.comparison.decisions import name_of as name_of
    from torchproof.measure.comparison.load_tests import (
        assert_comparable as assert_comparable,
    )
    from torchproof.measure.comparison.metrics import Metric as Metric
    from torchproof.measure.comparison.metrics import Row as Row
    from torchproof.measure.comparison.metrics import Thresholds as Thresholds
    from torchproof.measure.comparison.metrics import ratio_text as ratio_text
    from torchproof.measure.comparison.metrics import side_by_side as side_by_side
    from torchproof.measure.loadtest import LoadOptions as LoadOptions
    from torchproof.measure.loadtest import TextOptions as TextOptions
    from torchproof.measure.replies import Done as Done
    from torchproof.measure.replies import Facts as Facts
    from torchproof.measure.replies import Replayed as Replayed
    from torchproof.measure.session import Session as Session
    from torchproof.measure.session import measure as measure
    from torchproof.measure.session import switches as switches
    from torchproof.measure.specs import AS_WRITTEN as AS_WRITTEN
    from torchproof.measure.specs import EAGER as EAGER
    from torchproof.measure.specs import MeasureResult as MeasureResult
    from torchproof.measure.specs import Plan as Plan
    from torchproof.measure.specs import StrategySpec as StrategySpec
    from torchproof.measure.specs import assert_on_ranks as assert_on_ranks
    from torchproof.measure.specs import strategy_named as strategy_named
    from torchproof.measure.strategy_state import StrategyState as StrategyState
    from torchproof.measure.worker_process import WorkerError as WorkerError
    from torchproof.records.options import BenchOptions as BenchOptions
else:
    __getattr__, __all__ = lazy_exports(__name__)
