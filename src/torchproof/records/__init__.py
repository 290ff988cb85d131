"""The data that all other packages share: runs, events, findings, frames, samples.

In: nothing. Out: frozen records with their JSON, the store of runs on disk, safe file
reading, statistics of timings, and the owner of the code of a stack frame.
Start with `run.py`. Imports numpy and the standard library only.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.records import blame as blame
    from torchproof.records import cells as cells
    from torchproof.records import files as files
    from torchproof.records import printable as printable
    from torchproof.records import schema as schema
    from torchproof.records import stats as stats
    from torchproof.records import store as store
    from torchproof.records import timeline as timeline
    from torchproof.records.blame import COMPREHENSIONS as COMPREHENSIONS
    from torchproof.records.blame import Place as Place
    from torchproof.records.blame import definition as definition
    from torchproof.records.blame import first_line as first_line
    from torchproof.records.blame import is_frame_of as is_frame_of
    from torchproof.records.blame import is_own as is_own
    from torchproof.records.blame import is_resumed as is_resumed
    from torchproof.records.blame import module_of as module_of
    from torchproof.records.blame import package_of as package_of
    from torchproof.records.blame import place_of as place_of
    from torchproof.records.blame import plain_name as plain_name
    from torchproof.records.blame import qualified_name as qualified_name
    from torchproof.records.blame import shown as shown
    from torchproof.records.blame import shown_briefly as shown_briefly
    from torchproof.records.blame import source_line as source_line
    from torchproof.records.blame import tree_of as tree_of
    from torchproof.records.blame import user_frame as user_frame
    from torchproof.records.blame import whose as whose
    from torchproof.records.cause_tree import CauseTree as CauseTree
    from torchproof.records.comparable_runs import findings_only_in as findings_only_in
    from torchproof.records.comparable_runs import place_of_finding as place_of_finding
    from torchproof.records.comparable_runs import recorded_places as recorded_places
    from torchproof.records.comparable_runs import same_calls as same_calls
    from torchproof.records.files import MOST_SOURCE_BYTES as MOST_SOURCE_BYTES
    from torchproof.records.files import read_bytes as read_bytes
    from torchproof.records.fixes import NEEDS_UNSAFE as NEEDS_UNSAFE
    from torchproof.records.fixes import Fix as Fix
    from torchproof.records.fixes import Mark as Mark
    from torchproof.records.fixes import Overlay as Overlay
    from torchproof.records.fixes import Receipt as Receipt
    from torchproof.records.fixes import Replacement as Replacement
    from torchproof.records.fixes import Setting as Setting
    from torchproof.records.fixes import Tier as Tier
    from torchproof.records.frame import Frame as Frame
    from torchproof.records.identity import is_recorded as is_recorded
    from torchproof.records.lazy import collector_paused as collector_paused
    from torchproof.records.lazy import lazy_exports as lazy_exports
    from torchproof.records.load_test import ColdPhase as ColdPhase
    from torchproof.records.load_test import Generation as Generation
    from torchproof.records.load_test import LatencyMetric as LatencyMetric
    from torchproof.records.load_test import LatencyObjective as LatencyObjective
    from torchproof.records.load_test import LoadResult as LoadResult
    from torchproof.records.load_test import LoadTest as LoadTest
    from torchproof.records.load_test import ObjectiveVerdict as ObjectiveVerdict
    from torchproof.records.load_test import Percentile as Percentile
    from torchproof.records.load_test import RateTrial as RateTrial
    from torchproof.records.load_test import Requests as Requests
    from torchproof.records.load_test import Stall as Stall
    from torchproof.records.load_test import StallKind as StallKind
    from torchproof.records.load_test import Tail as Tail
    from torchproof.records.load_test import TailCause as TailCause
    from torchproof.records.load_test import TextLoad as TextLoad
    from torchproof.records.machine_check import Health as Health
    from torchproof.records.machine_check import MachineCheck as MachineCheck
    from torchproof.records.modules import located as located
    from torchproof.records.operations import INPUT as INPUT
    from torchproof.records.operations import Operation as Operation
    from torchproof.records.printable import document as document
    from torchproof.records.printable import line as line
    from torchproof.records.printable import seen as seen
    from torchproof.records.printable import unbroken as unbroken
    from torchproof.records.raised_error import RaisedError as RaisedError
    from torchproof.records.ranks import CollectiveTimeout as CollectiveTimeout
    from torchproof.records.ranks import CompiledFunctionRow as CompiledFunctionRow
    from torchproof.records.ranks import DifferenceKind as DifferenceKind
    from torchproof.records.ranks import FunctionOnRank as FunctionOnRank
    from torchproof.records.ranks import Rank as Rank
    from torchproof.records.ranks import RankDifference as RankDifference
    from torchproof.records.ranks import RankEvent as RankEvent
    from torchproof.records.ranks import RankOutcome as RankOutcome
    from torchproof.records.ranks import RankRun as RankRun
    from torchproof.records.ranks import RankWait as RankWait
    from torchproof.records.ranks import WaitCause as WaitCause
    from torchproof.records.ranks import WrapOrder as WrapOrder
    from torchproof.records.ranks import ranks_in_words as ranks_in_words
    from torchproof.records.repository import repository_of as repository_of
    from torchproof.records.run import CATEGORIES as CATEGORIES
    from torchproof.records.run import COUNTS as COUNTS
    from torchproof.records.run import SCHEMA as SCHEMA
    from torchproof.records.run import SEVERITIES as SEVERITIES
    from torchproof.records.run import SHOWN as SHOWN
    from torchproof.records.run import Baseline as Baseline
    from torchproof.records.run import CompileSite as CompileSite
    from torchproof.records.run import Difference as Difference
    from torchproof.records.run import Event as Event
    from torchproof.records.run import Finding as Finding
    from torchproof.records.run import Fixing as Fixing
    from torchproof.records.run import Measurement as Measurement
    from torchproof.records.run import Observation as Observation
    from torchproof.records.run import Part as Part
    from torchproof.records.run import PartState as PartState
    from torchproof.records.run import RankTime as RankTime
    from torchproof.records.run import RuleText as RuleText
    from torchproof.records.run import Run as Run
    from torchproof.records.run import Severity as Severity
    from torchproof.records.run import Status as Status
    from torchproof.records.run import Verdict as Verdict
    from torchproof.records.schema import Mismatch as Mismatch
    from torchproof.records.schema import Record as Record
    from torchproof.records.schema import to_plain as to_plain
    from torchproof.records.stacks import Region as Region
    from torchproof.records.stacks import frames_in as frames_in
    from torchproof.records.stacks import inside_region as inside_region
    from torchproof.records.stacks import original_name as original_name
    from torchproof.records.stacks import resumed_at as resumed_at
    from torchproof.records.stacks import split_region as split_region
    from torchproof.records.stacks import starts_with as starts_with
    from torchproof.records.stats import Ratio as Ratio
    from torchproof.records.store import RUNS as RUNS
    from torchproof.records.timeline import Moment as Moment
    from torchproof.records.timeline import ProcessTimeline as ProcessTimeline
    from torchproof.records.timeline import Span as Span
    from torchproof.records.torch_support import MissingHook as MissingHook
    from torchproof.records.torch_support import installed_torch as installed_torch
    from torchproof.records.torch_support import is_missing_hook as is_missing_hook
    from torchproof.records.torch_support import supported_torch as supported_torch
    from torchproof.records.torch_support import untested_torch as untested_torch
    from torchproof.records.tuning import Outcome as Outcome
    from torchproof.records.tuning import SearchState as SearchState
    from torchproof.records.tuning import Skip as Skip
    from torchproof.records.tuning import Stage as Stage
    from torchproof.records.tuning import Trial as Trial
    from torchproof.records.tuning import Tuning as Tuning
    from torchproof.records.user_error import UserError as UserError
    from torchproof.records.user_error import one_line as one_line
else:
    __getattr__, __all__ = lazy_exports(__name__)
