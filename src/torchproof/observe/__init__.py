"""Run a target once and record what the compiler did.

In: a target. Out: an `Observation` with events, such as graph breaks and recompiles.
Start with `capture.py` (parent) and `observer.py` (child process).
Imports `records`, `process`, `targets` and `torch_private`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.observe import audit as audit
    from torchproof.observe import capture as capture
    from torchproof.observe import guard_failures as guard_failures
    from torchproof.observe import timeline as timeline
    from torchproof.observe.audit import AuditResult as AuditResult
    from torchproof.observe.break_cost import BreakCost as BreakCost
    from torchproof.observe.break_cost import BreakCosts as BreakCosts
    from torchproof.observe.break_cost import Gap as Gap
    from torchproof.observe.break_cost import GraphLines as GraphLines
    from torchproof.observe.break_cost import TracedLine as TracedLine
    from torchproof.observe.capture import observe as observe
    from torchproof.observe.child import observe_job as observe_job
    from torchproof.observe.child import observing as observing
    from torchproof.observe.gathering import gather as gather
    from torchproof.observe.in_process import InProcessObserver as InProcessObserver
    from torchproof.observe.observer import Observer as Observer
    from torchproof.observe.ranks import ExistingLaunch as ExistingLaunch
    from torchproof.observe.ranks import JoinedRanks as JoinedRanks
    from torchproof.observe.ranks import Ranks as Ranks
    from torchproof.observe.ranks import assert_launchable as assert_launchable
    from torchproof.observe.ranks import observe_ranks as observe_ranks
    from torchproof.observe.recompile_cause import causes_of as causes_of
    from torchproof.observe.size_sweep import Sweep as Sweep
    from torchproof.observe.size_sweep import recompiles_by_size as recompiles_by_size
    from torchproof.observe.step_detector import StepDetector as StepDetector
    from torchproof.observe.timeline import Recorder as Recorder
    from torchproof.observe.timeline import record_timeline as record_timeline
    from torchproof.observe.trace_log import read_break as read_break
    from torchproof.observe.trace_log import read_folder as read_folder
    from torchproof.observe.unguarded_reads import Read as Read
    from torchproof.observe.unguarded_reads import reads_of as reads_of
    from torchproof.records.options import RankOptions as RankOptions
    from torchproof.torch_private import is_compiled as is_compiled
else:
    __getattr__, __all__ = lazy_exports(__name__)
