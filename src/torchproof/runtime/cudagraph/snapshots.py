"""What a graphed step keeps: its calls by shape, in each state of what it reads.

A `Snapshot` is the external state at one time, with the calls in this state. A `Shape`
is the calls with one key there: recorded, to be recorded, or refused with the reason.
`Snapshots` compares the external state, and goes back to an earlier one or on to a new
one if it differs. `Compilers` makes what runs the step.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from torchproof import strategies
from torchproof.records import UserError
from torchproof.runtime.cudagraph import preparation
from torchproof.runtime.cudagraph.capture import Pool
from torchproof.runtime.cudagraph.graph_status import Stop
from torchproof.runtime.cudagraph.ladder import Choice, Kind, Way
from torchproof.runtime.cudagraph.optimizers import LearningRates
from torchproof.runtime.cudagraph.padding import Padder, Shapes
from torchproof.runtime.cudagraph.partial_trace import PartialTrace
from torchproof.runtime.cudagraph.preparation import Body, Plan, Preparation
from torchproof.runtime.cudagraph.progressive import (
    DEADLINE_S,
    Stage,
    Upgrade,
    Within,
)
from torchproof.runtime.cudagraph.recorder import Recording
from torchproof.runtime.cudagraph.state_snapshot import StateSnapshot
from torchproof.strategies import Strategy
from torchproof.torch_private import remote_graphs

# A step whose external state changes this often between two replays is not recorded.
STORM = 4
_MOST_SNAPSHOTS = 4  # for example train and eval, each with two settings


@dataclass(frozen=True)
class Options:
    """How a step is compiled and recorded, and what its caller promises."""

    strategy: Strategy = field(default_factory=lambda: strategies.parse("eager"))
    later: tuple[Strategy, ...] = ()  # compiled while recordings answer calls
    train: bool = False
    buffers: bool = False  # outputs are the recording's own memory
    padder: Padder | None = None
    pool: Pool | None = None  # with the recordings of another step
    only_arguments: bool = False  # nothing else changes between calls
    audit: int | None = None  # each call of this number checks that
    depends: Callable[[], Any] | None = None  # what cannot be watched
    within: Within = contextlib.nullcontext  # the context around each recording
    deadline_s: float = DEADLINE_S  # for the code of each strategy in `later`
    refused: Stop | None = None  # why nothing is recorded
    unrecorded: Callable[..., Any] | None = None  # runs what cannot be recorded

    def __post_init__(self) -> None:
        for each in (self.strategy, *self.later):
            if strategies.records_graphs(each.arguments):
                raise UserError(
                    f"strategy {each.name!r}: this mode records its own CUDA graphs,"
                    " which cannot be nested; use max-autotune-no-cudagraphs"
                )
            if each.form not in preparation.GRAPHED:
                raise UserError(
                    f"strategy {each.name!r}: a graph supports"
                    f" {', '.join(preparation.GRAPHED)}"
                )

    def trusts(self, call: int) -> bool:
        """Whether the external state is not compared at this call."""
        return self.only_arguments and (self.audit is None or call % self.audit != 0)


class Compilers:
    """Makes what runs a step: prepared for recordings, in stages, or unrecorded."""

    def __init__(self, step: Callable[..., Any], options: Options) -> None:
        self._step, self._options = step, options
        self._inner = step
        self._body: Body = _unchanged
        if options.train:
            self._inner, self._body = preparation.with_loss(step), preparation.training
        elif isinstance(step, nn.Module):
            self._body = preparation.inference

    def eager(self) -> Preparation:
        return Preparation(self._inner, self._body)

    def prepare(self, state: StateSnapshot, plan: Plan | None = None) -> Preparation:
        plan = plan or Plan(self._options.strategy)
        modules = state.reachable.modules
        return preparation.prepare(self._inner, self._body, plan, modules)

    def stages(self, state: StateSnapshot) -> list[Stage]:
        stages = []
        for each in self._options.later:
            backend = remote_graphs.Deferred({"dynamic": False, **each.arguments})
            traced = PartialTrace()
            prepare = functools.partial(
                self.prepare, state, Plan(each, backend, traced)
            )
            stages.append(Stage(each.name, backend, traced, prepare))
        return stages

    def ways(self, state: StateSnapshot) -> list[Way]:
        """How to run what cannot be recorded; the loss is not compiled with it."""
        has_gradients = self._options.train or not isinstance(self._step, nn.Module)
        body = preparation.training_apart if self._options.train else self._body
        names = {
            Kind.EAGER: "eager",
            Kind.PIECES: "full:reduce-overhead",
            Kind.COMPILED: "full",
        }
        plans = {kind: Plan(strategies.parse(name)) for kind, name in names.items()}
        modules = state.reachable.modules
        return [
            Way(
                kind,
                preparation.prepare(self._step, body, plan, modules),
                (lambda: state.reachable.parameters) if has_gradients else None,
            )
            for kind, plan in plans.items()
        ]


def _unchanged(step: Callable[..., Any]) -> Callable[..., Any]:
    return step


class ShapeState(enum.Enum):
    """What happens to a call that no recording of its shape serves."""

    NEW = "no call yet"
    ANSWERED = "to be recorded"
    POSTPONED = "to be recorded, unless it changes state again"
    RECORDED = "recorded"
    REFUSED = "cannot be recorded"


@dataclass
class Shape:
    """The calls with one key in one snapshot."""

    state: ShapeState = ShapeState.NEW
    recordings: list[Recording] = field(default_factory=list)  # by their gradients
    upgrades: dict[Recording, Upgrade] = field(default_factory=dict)  # not over yet
    changes_state: bool = False  # as the last attempt to record it found
    stops: tuple[Stop, ...] = ()  # why it is refused
    choice: Choice | None = None  # how it runs then
    # What the output of a padded call is cut to; False: not padded, None: not checked.
    cut: Shapes | Literal[False] | None = None

    @property
    def is_refused(self) -> bool:
        return self.state is ShapeState.REFUSED

    def recorded(self, recording: Recording) -> None:
        self.recordings.append(recording)
        self.state, self.stops, self.changes_state = ShapeState.RECORDED, (), False

    def end_recordings(self) -> None:
        for upgrade in self.upgrades.values():
            upgrade.end()
        for recording in self.recordings:
            recording.drop()
        self.recordings.clear()
        self.upgrades.clear()
        if self.state is ShapeState.RECORDED:
            self.state = ShapeState.ANSWERED

    def in_new_snapshot(self) -> Shape:
        if self.state is ShapeState.NEW:
            return Shape()
        after = ShapeState.POSTPONED if self.changes_state else ShapeState.ANSWERED
        return Shape(after, changes_state=self.changes_state)


class Snapshot:
    """The external state of the step at one time, and the calls in this state."""

    def __init__(
        self,
        state: StateSnapshot,
        shapes: dict[Hashable, Shape],
        compilers: Compilers,
        notes: list[str],
    ) -> None:
        self.state, self._shapes, self._compilers = state, shapes, compilers
        self.learning_rates = LearningRates(notes)
        self.learning_rates.add(state.reachable.optimizers)
        self.preparation = compilers.prepare(state)
        self.stages = compilers.stages(state)  # with `wait=False`
        state.refresh()  # torch.compile changes attributes of the step

    @functools.cached_property
    def ways(self) -> list[Way]:
        """Made for the first call that is refused: that loads the compiler."""
        return self._compilers.ways(self.state)

    @property
    def shapes(self) -> list[Shape]:
        return [*self._shapes.values()]

    @property
    def recordings(self) -> list[Recording]:
        return [each for shape in self.shapes for each in shape.recordings]

    def shape(self, key: Hashable) -> Shape:
        return self._shapes.setdefault(key, Shape())

    def serving(self, key: Hashable) -> Recording | None:
        """The recording whose replay is right for a call with this key."""
        if (shape := self._shapes.get(key)) is not None:
            for recording in shape.recordings:
                if recording.gradients.fits():
                    return recording
        return None

    def end_recordings(self) -> None:
        for shape in self.shapes:
            shape.end_recordings()

    def after(self, state: StateSnapshot, notes: list[str]) -> Snapshot:
        """Where the same shapes begin again, in another external state."""
        shapes = {key: each.in_new_snapshot() for key, each in self._shapes.items()}
        return Snapshot(state, shapes, self._compilers, notes)


class Snapshots:
    """The snapshots of one step, the current one first."""

    def __init__(self, step: Callable[..., Any], compilers: Compilers) -> None:
        self._step, self._compilers = step, compilers
        self.every: list[Snapshot] = []
        self.changes: Counter[str] = Counter()
        self.notes: list[str] = []
        self._changes_since_replay = 0

    @property
    def current(self) -> Snapshot:
        return self.every[0]

    @property
    def recordings(self) -> list[Recording]:
        return [each for snapshot in self.every for each in snapshot.recordings]

    @property
    def is_storm(self) -> bool:
        """Whether the state has changed too often since the last replay."""
        return self._changes_since_replay >= STORM

    def replayed(self) -> None:
        self._changes_since_replay = 0

    def take_first(self) -> None:
        state = StateSnapshot(self._step)
        self.every = [Snapshot(state, {}, self._compilers, self.notes)]

    def differing(self) -> list[str]:
        """The changes of the external state; an equal object is no change."""
        state = self.current.state
        try:
            changes = state.changes()
        except Exception as error:  # another thread may be changing the state
            return [f"the external state cannot be compared: {error!r}"]
        if not changes:
            state.refresh()
        return changes

    def switch(self, changes: list[str]) -> None:
        """Goes on to the state with these changes: to its snapshot, or a new one."""
        self.changes.update(changes)
        for snapshot in self.every[1:]:
            if not snapshot.state.changes():
                snapshot.state.refresh()
                self.every.remove(snapshot)
                self.every.insert(0, snapshot)
                return
        self._changes_since_replay += 1
        last = self.current
        moved = last.state.moved()
        state = StateSnapshot(self._step, last.state.ran)
        self.every.insert(0, last.after(state, self.notes))
        # An old snapshot would keep the old memory of moved tensors alive.
        for old in self.every[1:] if moved else self.every[_MOST_SNAPSHOTS:]:
            old.end_recordings()
            self.every.remove(old)

    def end_recordings(self) -> None:
        for snapshot in self.every:
            snapshot.end_recordings()
