"""Decisions of several ranks; here each rank is an object in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist
from waiting import wait_for

from torchproof.runtime import agreement as agreements
from torchproof.runtime.agreement import Agreement
from torchproof.runtime.rank_messages import Notice
from torchproof.runtime.status_report import Fallback
from torchproof.runtime.telemetry import Telemetry
from torchproof.torch_private import process_groups
from torchproof.torch_private.process_groups import ProcessGroup

FAILURE = Fallback("deadline", "f", "compiling took too long")


class NumberedTelemetry(Telemetry):
    """Takes the number of a call from the test: nothing here is called by a model."""

    @property
    def call(self) -> int | None:
        return getattr(self.current, "call", None)


class Forward:
    """As much of a compiled forward as an agreement uses."""

    def __init__(self, deadline_s: float = 20.0, strategy: str = "full") -> None:
        self.telemetry = NumberedTelemetry("Net", None)
        self.options = SimpleNamespace(deadline_s=deadline_s)
        self.strategy = strategy
        self.is_voting = False
        self.has_packed_collectives = False
        self.ran: list[str] = []
        self.run = lambda: self.ran.append("compiled")
        self.telemetry.current.call = 0

    def go_eager(self, item: Fallback) -> None:
        self.strategy = "eager"
        self.telemetry.fell_back(item)
        self.run = lambda: self.ran.append("eager")

    def replace_run(self, around: Callable[..., Any]) -> None:
        if self.strategy != "eager":
            self.run = around(self.run)

    def call(self) -> None:
        self.telemetry.current.call = next(self.telemetry.numbers)
        self.run()


class Rank:
    """One rank of a run, with its forward and its agreement."""

    def __init__(self, store: Any, rank: int, **options: Any) -> None:
        self.forward: Any = Forward(**options)
        group = ProcessGroup(store, rank, world_size=2, timeout_s=1800.0)
        self.agreement = Agreement(group, "Net/0", self.forward)
        self.agreement.begin_attempt()
        self.forward.telemetry.announce = self.agreement.announce

    def couple(self) -> None:
        """As if a graph with a collective of both ranks had been captured."""
        self.agreement._add_peers({0, 1} - {self.agreement._group.rank})

    def vote(self, call: int = 0, **options: Any) -> Notice | None:
        self.forward.telemetry.current.call = call
        arguments = {"until": time.monotonic() + 20, "by_all": True} | options
        self.forward.is_voting = True
        try:
            return self.agreement.settle(f"f/{call}", "f", **arguments)
        finally:
            self.forward.is_voting = False


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Rank]]]:
    monkeypatch.setattr(agreements, "_WATCH_EVERY_S", 0.01)
    monkeypatch.setattr(process_groups, "is_open", lambda: True)
    started: list[Rank] = []

    def start(*options: dict[str, Any]) -> list[Rank]:
        store = dist.HashStore()
        each = options or ({}, {})
        started.extend(Rank(store, rank, **each[rank]) for rank in range(2))
        return started

    yield start
    for rank in started:
        rank.agreement.alone = "the test is over"


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """Runs each function in a thread, as ranks run; their results."""
    with ThreadPoolExecutor(len(work)) as pool:
        return [each.result() for each in [pool.submit(act) for act in work]]


def test_the_others_follow_a_rank_that_fails(ranks: Any) -> None:
    first, second = ranks()
    first.couple()  # the second one failed before it had a graph

    def fail() -> None:
        second.forward.telemetry.fell_back(FAILURE)

    objection, _ = at_once(first.vote, fail)
    assert objection.rank == 1 and objection.kind == "deadline"
    assert len(first.agreement.decisions) == 1


def test_a_lone_recompile_does_not_wait(ranks: Any) -> None:
    first, second = ranks()
    first.couple()
    second.couple()
    until = time.monotonic() + 100
    assert first.vote(call=3, by_all=False, until=until) is None
    assert time.monotonic() < until


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = {"_POST_S": 0.1, "_GRACE_S": 0.2, "_LATE_CONFIRM_S": 0.2}
    for name, seconds in waits.items():
        monkeypatch.setattr(agreements, name, seconds)


class BreakingStore:
    """A store that works until an operation on a key, and then never again."""

    def __init__(self, store: Any, operation: str, key: str, fault: str) -> None:
        self._store = store
        self._breaks_at = operation, key
        self._fault = fault
        self.is_broken = False

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self._do(name, *args)

    def _do(self, operation: str, *args: Any) -> Any:
        key = args[0][0] if operation == "check" else args[0]
        name, at = self._breaks_at
        self.is_broken = self.is_broken or (name == operation and at in key)
        if self.is_broken and self._fault == "hangs":
            time.sleep(2)
        if self.is_broken:
            raise EOFError("the connection was closed")
        return getattr(self._store, operation)(*args)


@pytest.mark.parametrize(
    ("faulty", "fault", "by_all"),
    [
        (0, ("set", "begin/", "raises"), True),
        (1, ("set", "vote/", "raises"), True),
        (1, ("set", "vote/", "raises"), False),
        (0, ("check", "vote/", "raises"), False),
        (1, ("set", "confirmed/", "hangs"), True),
    ],
)
def test_no_rank_compiles_if_the_store_of_one_breaks(
    ranks: Any, fault: tuple[str, str, str], faulty: int, by_all: bool, short_waits: Any
) -> None:
    both = ranks({"deadline_s": 0.2}, {"deadline_s": 0.2})
    broken = both[faulty].agreement
    broken.messages._store = BreakingStore(broken.messages._store, *fault)
    for rank in both:
        rank.couple()
    for rank in both:
        rank.agreement.begin("f/0")
    until = time.monotonic() + 0.2
    answers = at_once(*(lambda r=r: r.vote(until=until, by_all=by_all) for r in both))
    assert None not in answers
    assert [rank.forward.strategy for rank in both] == ["eager", "eager"]


@pytest.mark.parametrize(
    ("operation", "key"),
    [("check", "confirmed/"), ("compare_set", "decision/"), ("set", "used/")],
)
def test_a_rank_in_doubt_after_its_confirmation_takes_the_others_to_eager(
    ranks: Any, monkeypatch: pytest.MonkeyPatch, operation: str, key: str
) -> None:
    monkeypatch.setattr(agreements, "_USED_S", 0.1)
    monkeypatch.setattr(agreements, "_SILENT_S", 0.1)
    first, second = ranks()
    messages = second.agreement.messages
    messages._store = BreakingStore(messages._store, operation, key, "raises")
    for rank in (first, second):
        rank.couple()
    answer, _ = at_once(first.vote, second.vote)
    wait_for(lambda: second.forward.strategy == "eager")
    if answer is None:  # the confirmation of the other one was its last word
        wait_for(lambda: first.agreement.arrival is not None)
        for _ in range(3):
            first.forward.call()
    assert first.forward.strategy == "eager"


# -- graphs ----------------------------------------------------------------------------


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def captured(model: Any, *args: Any) -> frozenset[int]:
    ranks: list[frozenset[int]] = []

    def keep(gm: Any, inputs: Any) -> Any:
        ranks.append(process_groups.ranks_in_graph(gm))
        return gm.forward

    torch.compile(model, backend=keep)(*args)
    return frozenset().union(*ranks)


def test_collectives_in_graphs(one_rank: None, fresh_compiler: None) -> None:
    def reduced(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y

    assert captured(reduced, torch.ones(2)) == {0}
    assert captured(lambda x: x * 2, torch.ones(2)) == frozenset()
    assert process_groups.default_group() is None  # of one rank


@pytest.mark.parametrize(
    ("groups", "peers"),
    [
        ([{0, 1}], {1}),
        ([{0, 1}, {0, 1, 2, 3}], {1, 2, 3}),
        ([{0, 1}, {0, 2}], {1, 2, 3}),  # rows and columns: 1 and 2 decide with 3
    ],
)
def test_ranks_of_groups_that_overlap_decide_with_all(
    monkeypatch: pytest.MonkeyPatch, groups: list[set[int]], peers: set[int]
) -> None:
    group = ProcessGroup(dist.HashStore(), 0, world_size=4, timeout_s=1800.0)
    forward: Any = Forward()
    agreement = Agreement(group, "Net/0", forward)
    agreement.begin_attempt()
    found = frozenset(map(frozenset, groups))
    monkeypatch.setattr(process_groups, "groups_in_graph", lambda gm: found)
    graph: Any = None
    agreement.note_graph(graph)
    assert agreement.peers == peers
    agreement.alone = "the test is over"
