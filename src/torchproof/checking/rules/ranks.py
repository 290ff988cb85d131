"""Rules for several ranks: what one rank does alone, and who waits for it.

The events come from comparing the ranks of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import (
    MESSAGE,
    EventGroup,
    Facts,
    Rule,
    grouped,
    plural,
)
from torchproof.records import (
    Event,
    Finding,
    Place,
    Remedy,
    Severity,
    ranks_in_words,
)

_LONG_WAIT_S = 5.0  # one that a person notices in every epoch


@dataclass(frozen=True, kw_only=True)
class RankEvidence(Event):
    """What some ranks did, in one step, and what that means for the others.

    `what` is the end of a sentence that begins with the ranks. Evidence with the same
    code and `root` becomes one finding. `shown` are the findings of other rules about
    the same event.
    """

    code: str
    root: object
    ranks: tuple[int, ...]
    place: Place
    what: str
    cause: str
    advice: str = ""  # empty: that of the rule
    remedy: Remedy | None = None  # that of a finding of the rank, which cures this too
    name: str = ""  # of the function
    is_users: bool = False  # the function is in the user's own code
    step: int | None = None
    waited_s: float | None = None
    waiting: tuple[int, ...] = ()
    shown: tuple[Finding, ...] = ()
    details: tuple[str, ...] = ()
    compiles: tuple[tuple[int, str | None], ...] = ()  # rank, compile id

    @property
    def waited(self) -> str:
        if self.waited_s is None:
            return ""
        return f"; {ranks_in_words(self.waiting)} waited {self.waited_s:.1f} s"

    @property
    def at(self) -> str:
        return "" if self.step is None else f" at step {self.step}"


RankGroup = EventGroup[RankEvidence]


class RankRule(Rule[RankGroup]):
    """Base class of the rules for several ranks."""

    kind = "rank_difference"
    reference = torch_pages.PARALLEL
    long_wait_severity: ClassVar[Severity] = "high"
    run_severity: ClassVar[Severity] = "medium"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[RankGroup]:
        """One group for each rule and cause, over all steps; the closest first."""
        for same in grouped(facts.of(RankEvidence), _key):
            same.sort(key=_distance)
            first = same[0]
            steps = {event.step for event in same} - {None}
            yield RankGroup(
                tuple(same),
                first.place,
                facts,
                count=len(same),
                steps=len(steps) if steps else None,
            )

    def matches(self, group: RankGroup) -> bool:
        return bool(group.first.code == self.code)

    def message(self, group: RankGroup) -> str:
        every = group.events
        first = every[0]
        who = ranks_in_words(r for each in every for r in each.ranks)
        functions = dict.fromkeys(each.name for each in every)
        more = plural(len(functions) - 1, "more function")
        others = f" (and {more})" if len(functions) > 1 else ""
        steps = sorted({each.step for each in every if each.step is not None})
        at = first.at
        if len(steps) > 1:
            at = f" in {len(steps)} steps, first at step {steps[0]}"
        text = f"{who} {first.what}{others}{at}"
        whole = f"{text}{self._waited(every)}"
        return whole if len(whole) <= MESSAGE else text

    def _waited(self, every: Sequence[RankEvidence]) -> str:
        seconds = [each.waited_s for each in every if each.waited_s is not None]
        waiting = {rank for each in every for rank in each.waiting}
        if not seconds or not waiting:
            return ""
        return f"; {ranks_in_words(waiting)} waited {sum(seconds):.1f} s"

    def cause(self, group: RankGroup) -> str:
        return group.first.cause

    def advice(self, group: RankGroup) -> str:
        return group.first.advice or self.advice_text

    def remedy(self, group: RankGroup) -> Remedy:
        return group.first.remedy or super().remedy(group)

    def severity(self, group: RankGroup) -> Severity:
        waited = sum(each.waited_s or 0.0 for each in group.events)
        return self.long_wait_severity if waited >= _LONG_WAIT_S else self.run_severity

    def evidence(self, group: RankGroup) -> Iterable[str]:
        for each in group.events:
            yield f"{ranks_in_words(each.ranks)}{each.at}: {each.what}{each.waited}"
            yield from each.details

    def finding(self, group: RankGroup) -> Finding:
        every = group.events
        steps = [each.step for each in every if each.step is not None]
        seconds = [each.waited_s for each in every if each.waited_s is not None]
        return replace(
            super().finding(group),
            ranks=tuple(sorted({rank for each in every for rank in each.ranks})),
            step=min(steps, default=None),
            waited_s=sum(seconds) if seconds else None,
        )


def _distance(evidence: RankEvidence) -> tuple[bool, bool]:
    """Smaller for the user's code, then for code that has a line to show."""
    return not evidence.is_users, evidence.place.frame is None


def _key(evidence: RankEvidence) -> tuple[object, ...]:
    return evidence.code, evidence.root


class LoneRecompile(RankRule):
    """A rank compiles a function again while the other ranks do not.

    ## Why
    The other ranks reach the next collective and wait there until the compiler is done
    on this one. If that takes longer than the timeout of the process group, the job is
    killed.

    ## Bad
        model.scale = 0.5 if rank == 3 else 1.0        # a guard fails on rank 3 only

    ## Good
        model.scale = 0.5                              # the same value on every rank
        torch.compiler.set_enable_guard_collectives(True)      # or: recompile together

    ## Fix safety
    A value that is the same on all ranks may change what is computed: check that it was
    meant to differ. Guard collectives keep the values and cost a collective per call.
    """

    code = "RK101"
    reference = torch_pages.RECOMPILES
    advice_text = (
        "before the first call: torch.compiler.set_enable_guard_collectives(True), so"
        " that all ranks recompile together"
    )


class DifferentGraphs(RankRule):
    """Ranks trace different graphs of the same function.

    ## Why
    Each rank is compiled for what its own Python code does. Ranks with different graphs
    compile for different times, miss each other's caches, and compute different things.
    If a collective is among what differs, they hang.

    ## Bad
        def forward(self, x):
            return self.head(x) if self.rank == 0 else x

    ## Good
        def forward(self, x):
            return self.head(x)             # the same operations on every rank

    ## Fix safety
    What only one rank computes can move out of the compiled function unchanged.
    """

    code = "RK102"
    advice_text = "take the same branch on every rank"


class LoneBreak(RankRule):
    """A line breaks the graph on some ranks only.

    ## Why
    These ranks run more and smaller graphs and return to Python in between, so they are
    slower in every step, and the others wait for them.

    ## Bad
        def forward(self, x):
            if self.rank == 0:
                print(x.shape)
            return self.layer(x)

    ## Good
        if rank == 0:
            print(x.shape)                  # outside of the compiled function
        model(x)

    ## Fix safety
    Output outside of the compiled function appears at another time.
    """

    code = "RK103"
    reference = torch_pages.BREAKS
    advice_text = "move the line out of the compiled function"


class ColdCache(RankRule):
    """A rank compiles anew what other ranks load from their cache.

    ## Why
    Ranks with a warm cache start in seconds and wait in the first collective for those
    that compile. With a cold node in a large job this exceeds the timeout of the
    process group.

    ## Bad
        torchrun --nnodes 2 train.py        # only one of the nodes has run it before

    ## Good
        TORCHINDUCTOR_CACHE_DIR=/shared/cache torchrun --nnodes 2 train.py
        model = torchproof.load("model.pack")          # or: one pack for all ranks

    ## Fix safety
    The values are the same. A cache folder is code: only trusted users may write to it.
    """

    code = "RK104"
    reference = torch_pages.COMPILE_TIME
    advice_text = "set TORCHINDUCTOR_CACHE_DIR to a folder that all nodes share"


class ShortBatch(RankRule):
    """A rank recompiles for a smaller batch than the others have, or one of size 1.

    ## Why
    The first change of a size is compiled for, and a size of 1 always is. If the data
    does not divide evenly, the last batch is smaller on some ranks only, and all others
    wait for their compiler.

    ## Bad
        DataLoader(data, batch_size=8, sampler=sampler)      # the last batch has 3

    ## Good
        DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)

    ## Fix safety
    With drop_last=True the rows of the last batch are not used in this epoch. Padding
    keeps them; mask what was added.
    """

    code = "RK105"
    reference = torch_pages.DYNAMIC_SHAPES
    advice_text = (
        "give every rank batches of the same size: drop_last=True in the data loader"
    )


class CollectivesInSomeGraphs(RankRule):
    """A collective is inside the compiled graph on some ranks only.

    ## Why
    A collective must be called by all ranks in the same order. In a graph the compiler
    may move it; next to ranks that call it from Python, the order can differ, and the
    job hangs.

    ## Bad
        def forward(self, x):
            if self.rank == 0:
                log(x)                      # a break, so rank 0 gathers in Python
            return all_gather_tensor(x, 0, group)

    ## Good
        def forward(self, x):
            return all_gather_tensor(x, 0, group)

    ## Fix safety
    The values are the same.
    """

    code = "RK106"
    run_severity = "high"
    advice_text = "run the same code on every rank up to the collective"


class WrappingOrder(RankRule):
    """A module is compiled after FSDP, and the hooks of FSDP break its graph.

    ## Why
    The hooks gather parameters and are not traced, so the graph breaks at each sharded
    module inside. The order of torch.compile and DDP is no finding: in both orders
    torch splits the graphs at the gradient buckets, and sending overlaps with backward.

    ## Bad
        model = torch.compile(fully_shard(model))

    ## Good
        for block in model.blocks:
            block.compile()
            fully_shard(block)

    ## Fix safety
    The values are the same up to rounding.
    """

    code = "RK107"
    kind = "config"
    advice_text = (
        "compile each block before sharding it: block.compile(), then"
        " fully_shard(block)"
    )


class EagerRank(RankRule):
    """A rank runs no compiled code while the others do.

    ## Why
    It is slower in every step, and the others wait for it. Something on this rank
    leaves the compiled function out, or the compiler gave up there.

    ## Bad
        if rank == 0:
            model = torch.compile(model)

    ## Good
        model = torch.compile(model)        # on every rank

    ## Fix safety
    The values are the same within rounding.
    """

    code = "RK108"
    reference = torch_pages.WHERE
    advice_text = "compile and call the model on every rank"


class LateRank(RankRule):
    """Ranks wait for one that does not compile: it is slow, or collects garbage.

    ## Why
    A collective ends when its last rank arrives. A pause of Python's garbage collector,
    slow data, or a busy machine on one rank delays all of them, and looks like a
    compilation from outside.

    ## Bad
        for batch in loader:                # each rank collects garbage when it happens
            step(batch)

    ## Good
        gc.disable()
        for number, batch in enumerate(loader):
            step(batch)
            if number % 100 == 0:
                gc.collect()                # on all ranks in the same step

    ## Fix safety
    Cyclic garbage stays in memory until the next collection.
    """

    code = "RK109"
    reference = torch_pages.TUNING
    run_severity = "low"
    long_wait_severity = "medium"
    advice_text = (
        "after warm-up call gc.disable(), and gc.collect() on all ranks in one step"
    )


class FailedCollective(RankRule):
    """A collective failed because a rank did not come: it was compiling, or had ended.

    ## Why
    A rank that waits in a collective for longer than the timeout of its process group
    raises an error, and the whole job ends. The error names the collective, and not
    what the missing rank was doing.

    ## Bad
        dist.init_process_group("nccl", timeout=timedelta(seconds=60))
        step(batch)                         # compiles for 90 s on one rank

    ## Good
        dist.init_process_group("nccl", timeout=timedelta(minutes=30))
        step(batch)
        dist.barrier()                      # all ranks have compiled

    ## Fix safety
    A longer timeout also delays the end of a job that really hangs.
    """

    code = "RK110"
    run_severity = "high"
    advice_text = (
        "pass a timeout to init_process_group that is longer than compiling takes"
    )

    def message(self, group: RankGroup) -> str:
        return group.first.what
