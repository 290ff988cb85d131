"""Decisions of several ranks; here each rank is an object in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from torchproof.runtime import agreement as agreements
from torchproof.runtime.agreement import Agreement
from torchproof.runtime.rank_messages import Notice, RankMessages, StoreLost
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

    def settle(self, call: int = 0, **options: Any) -> Notice | None:
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
    results: list[Any] = [None] * len(work)

    def run(number: int) -> None:
        results[number] = work[number]()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()


def test_without_collectives_each_rank_decides_alone(ranks: Any) -> None:
    first, second = ranks()
    assert second.settle(failure=FAILURE) is None and first.settle() is None
    second.forward.telemetry.fell_back(FAILURE)
    wait_until(lambda: first.agreement.to_json()["fallbacks"] != [])
    [told] = first.agreement.to_json()["fallbacks"]
    assert told["rank"] == 1 and told["kind"] == "deadline"
    assert first.agreement.to_json()["decides_with"] == []


def test_code_that_every_rank_compiled_is_used(ranks: Any) -> None:
    first, second = ranks()
    first.couple()
    second.couple()
    assert at_once(first.settle, second.settle) == [None, None]
    assert first.agreement.decisions == second.agreement.decisions == []


def test_the_others_follow_a_rank_that_fails(ranks: Any) -> None:
    first, second = ranks()
    first.couple()  # the second one failed before it had a graph

    def fail() -> None:
        second.forward.telemetry.fell_back(FAILURE)

    objection, _ = at_once(first.settle, fail)
    assert objection.rank == 1 and objection.kind == "deadline"
    assert len(first.agreement.decisions) == 1


def test_a_graph_that_fails_on_one_rank_runs_uncompiled_on_both(ranks: Any) -> None:
    first, second = ranks()
    first.couple()
    second.couple()
    failure = Fallback("compile error", "graph 1", "planted")
    failing = lambda: second.settle(failure=failure)  # noqa: E731
    objection, own = at_once(first.settle, failing)
    assert objection.kind == "compile error" and own.rank == 1
    assert second.agreement.decisions == []


def test_a_lone_recompile_does_not_wait(ranks: Any) -> None:
    first, second = ranks()
    first.couple()
    second.couple()
    before = time.monotonic()
    assert first.settle(call=3, by_all=False) is None
    assert time.monotonic() - before < 10  # of the 20 s to the deadline


def test_a_recompile_on_both_ranks_is_settled(ranks: Any) -> None:
    first, second = ranks()
    first.couple()
    second.couple()
    second.agreement.begin("f/3")

    def late() -> Any:
        time.sleep(0.1)
        return second.settle(call=3, by_all=False, failure=FAILURE)

    objection, _ = at_once(lambda: first.settle(call=3, by_all=False), late)
    assert objection.rank == 1


def test_a_rank_that_is_dead_delays_no_longer_than_the_deadline(ranks: Any) -> None:
    first, _ = ranks({"deadline_s": 0.1}, {})
    first.couple()
    objection = first.settle(until=time.monotonic() + 0.1)
    assert objection.kind == "no answer" and objection.rank == 1
    assert first.agreement.alone is None


def test_a_late_rank_obeys_the_decision(ranks: Any) -> None:
    first, second = ranks({"deadline_s": 0.1}, {})
    first.couple()
    second.couple()
    assert first.settle(until=time.monotonic() + 0.1).kind == "no answer"
    # It sees the vote of the first rank, which compiled; the decision is older.
    assert second.settle().kind == "no answer"


def test_ranks_with_different_strategies_run_eager(ranks: Any) -> None:
    first, _ = ranks({}, {"strategy": "eager"})
    first.couple()
    objection = first.settle()
    assert objection.kind == "strategy" and objection.rank == 1


def test_all_ranks_switch_at_the_same_call(ranks: Any) -> None:
    first, second = ranks()
    for rank in (first, second):
        rank.couple()
    for _ in range(3):
        first.forward.call()
    second.forward.call()
    second.forward.telemetry.fell_back(Fallback("first run", "graph 1", "planted"))
    for rank in (first, second):
        wait_until(lambda rank=rank: rank.agreement.arrival is not None)

    def go_on(rank: Rank) -> None:
        while rank.forward.telemetry.calls < 6:
            rank.forward.call()

    at_once(lambda: go_on(first), lambda: go_on(second))
    # The first rank had begun three calls: its fourth may still run compiled code.
    expected = ["compiled"] * 4 + ["eager"] * 2
    assert first.forward.ran == expected and second.forward.ran == expected
    assert first.forward.telemetry.fallbacks[-1].kind == "agreement"


def test_after_a_missed_deadline_no_other_function_is_waited_for(ranks: Any) -> None:
    first, second = ranks()
    first.couple()
    missed = Fallback("deadline", "another function", "compiling took too long")
    second.forward.telemetry.fell_back(missed)
    assert first.settle().what == "another function"
    assert first.settle(call=1, until=time.monotonic()).kind == "no answer"


def test_ranks_without_code_with_collectives_are_not_waited_for(ranks: Any) -> None:
    first, _ = ranks()
    first.couple()
    first.forward.call()
    assert first.agreement.agreed_call(1) == 1
    assert first.agreement.decisions == []


def test_a_failure_that_was_settled_calls_no_meeting(ranks: Any) -> None:
    first, second = ranks()
    for rank in (first, second):
        rank.couple()
        rank.forward.call()

    def fail() -> None:
        second.forward.telemetry.fell_back(FAILURE)

    objection, _ = at_once(first.settle, fail)
    first.forward.telemetry.fell_back(Fallback("agreement", "f", str(objection)))
    time.sleep(0.1)  # several looks at the store
    assert first.agreement.messages.meeting() is None


def test_a_switch_without_an_answer_happens_alone(ranks: Any) -> None:
    first, second = ranks({"deadline_s": 0.1}, {})
    first.couple()
    second.agreement.messages.beat(0)  # and it never arrives
    assert first.agreement.agreed_call(7) == 7  # the call that it is about to run
    assert "1" in first.agreement.decisions[0]


class BrokenStore:
    """A store whose server has ended."""

    def __init__(self) -> None:
        self.works = True

    def __getattr__(self, name: str) -> Any:
        raise dist.DistNetworkError("the connection was closed")


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = {"_POST_S": 0.1, "_GRACE_S": 0.2, "_LATE_CONFIRM_S": 0.2}
    for name, seconds in waits.items():
        monkeypatch.setattr(agreements, name, seconds)


def test_a_lost_store_means_eager(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = ranks()
    first.couple()
    monkeypatch.setattr(first.agreement.messages, "_store", BrokenStore())
    assert first.settle().kind == "no store"
    assert first.forward.strategy == "eager"
    told = first.agreement.to_json()
    assert "connection" in told["alone"] and told["fallbacks"] is None
    assert first.settle(call=1).kind == "no store"  # at once


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


@pytest.mark.parametrize("by_all", [True, False])
@pytest.mark.parametrize("faulty", [0, 1])
@pytest.mark.parametrize(
    "fault",
    [
        ("set", "begin/", "raises"),
        ("set", "begin/", "hangs"),
        ("set", "vote/", "raises"),
        ("check", "vote/", "raises"),
        ("set", "confirmed/", "raises"),
        ("set", "confirmed/", "hangs"),
    ],
    ids="-".join,
)
def test_no_rank_compiles_if_the_store_of_one_breaks(
    ranks: Any, fault: tuple[str, str, str], faulty: int, by_all: bool, short_waits: Any
) -> None:
    operation, key, how = fault
    both = ranks({"deadline_s": 0.2}, {"deadline_s": 0.2})
    broken = both[faulty].agreement
    broken.messages._store = BreakingStore(broken.messages._store, operation, key, how)
    for rank in both:
        rank.couple()
    for rank in both:
        rank.agreement.begin("f/0")
    until = time.monotonic() + 0.2
    answers = at_once(*(lambda r=r: r.settle(until=until, by_all=by_all) for r in both))
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
    answer, _ = at_once(first.settle, second.settle)
    wait_until(lambda: second.forward.strategy == "eager")
    if answer is None:  # the confirmation of the other one was its last word
        wait_until(lambda: first.agreement.arrival is not None)
        for _ in range(3):
            first.forward.call()
    assert first.forward.strategy == "eager"


def test_ranks_that_use_what_they_compiled_stay_compiled(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreements, "_USED_S", 0.1)
    first, second = ranks()
    for rank in (first, second):
        rank.couple()
    assert at_once(first.settle, second.settle) == [None, None]
    time.sleep(0.3)  # several looks at the store
    assert first.agreement.messages.meeting() is None
    assert {first.forward.strategy, second.forward.strategy} == {"full"}


def test_a_store_that_hangs_delays_no_longer_than_the_deadline(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = ranks({"deadline_s": 0.1}, {})
    first.couple()
    over = threading.Event()
    monkeypatch.setattr(
        first.agreement.messages, "vote", lambda *_: over.wait(20) and None
    )
    assert first.settle(until=time.monotonic() + 0.1).kind == "no store"
    over.set()
    assert first.agreement.alone is not None


def test_after_the_group_is_closed_each_rank_decides_alone(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = ranks()
    monkeypatch.setattr(process_groups, "is_open", lambda: False)
    assert "closed" in first.agreement.to_json()["alone"]
    assert not first.forward.telemetry.notes


def test_a_slow_store_leaves_fallbacks_unknown_in_status(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = ranks()
    over = threading.Event()
    monkeypatch.setattr(agreements, "_STATUS_S", 0.01)
    monkeypatch.setattr(
        first.agreement.messages, "new_notices", lambda: over.wait(20) and []
    )
    told = first.agreement.to_json()
    over.set()
    assert told["fallbacks"] is None and told["alone"] is None


def test_retry_begins_with_fresh_messages(ranks: Any) -> None:
    first, second = ranks()
    first.couple()
    second.forward.telemetry.fell_back(FAILURE)
    wait_until(lambda: first.settle() is not None)
    for rank in (first, second):
        rank.forward.telemetry.fallbacks.clear()
        rank.agreement.begin_attempt()
    second.couple()
    assert at_once(first.settle, second.settle) == [None, None]


def test_a_forked_process_does_not_use_the_store(ranks: Any) -> None:
    first, _ = ranks()
    first.couple()
    first.agreement.after_fork()
    assert not first.agreement.is_needed and first.settle() is None


def test_a_deadline_above_the_timeout_of_collectives_is_noted(ranks: Any) -> None:
    long, short = ranks({"deadline_s": 3600.0}, {})
    assert any("timeout" in note for note in long.forward.telemetry.notes)
    assert not short.forward.telemetry.notes


def test_a_notice_that_is_not_written_yet_hides_no_other() -> None:
    store = dist.HashStore()
    reader, writer = (RankMessages(store, rank, "Net/0") for rank in range(2))
    assert writer._store.add("notices", 1) == 1  # and the rank was killed here
    writer.notify(Notice(1, "f", "storm", "planted"))
    assert [each.what for each in reader.new_notices()] == ["f"]
    assert reader.new_notices() == []
    assert writer.new_notices() == []


def test_an_error_of_the_store_has_one_line() -> None:
    messages = RankMessages(dist.HashStore(), 0, "Net/0")
    messages._store = BrokenStore()  # type: ignore[assignment]
    with pytest.raises(StoreLost, match="closed"):
        messages.strategy_of(1)


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


def test_tensor_parallel_graphs(one_rank: None, fresh_compiler: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    net = nn.Sequential(nn.Linear(4, 4))
    mesh = init_device_mesh("cpu", (1,))
    assert captured(
        parallelize_module(net, mesh, {"0": ColwiseParallel()}), torch.ones(2, 4)
    ) == {0}


def test_guard_collectives_are_recognised() -> None:
    assert not process_groups.compiling_runs_collectives()
    torch.compiler.set_enable_guard_collectives(True)
    try:
        assert process_groups.compiling_runs_collectives()
    finally:
        torch.compiler.set_enable_guard_collectives(False)
    with torch._dynamo.config.patch(enable_compiler_collectives=True):
        assert process_groups.compiling_runs_collectives()


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


def test_a_store_that_cannot_be_shared_means_to_decide_alone() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        assert process_groups.default_group() is None
    finally:
        dist.destroy_process_group()
