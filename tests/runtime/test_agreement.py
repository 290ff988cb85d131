"""Votes of several ranks; here each rank is a thread of one process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import distributed as dist

from torchproof.runtime import agreement as agreements
from torchproof.runtime.agreement import Agreement, Vote, Votes
from torchproof.runtime.telemetry import Telemetry
from torchproof.torch_private import process_groups
from torchproof.torch_private.process_groups import ProcessGroup

FAILURE = Vote(1, "deadline", "compiling took too long")
LONG_S, SHORT_S = 60.0, 0.2


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreements, "_GRACE_S", 0.1)
    monkeypatch.setattr(agreements, "_STORE_S", 0.2)


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
            time.sleep(1)
        if self.is_broken:
            raise EOFError("the connection was closed")
        return getattr(self._store, operation)(*args)


def ranks(*faults: tuple[str, str, str] | None) -> list[Votes]:
    store = dist.HashStore()
    stores = [BreakingStore(store, *fault) if fault else store for fault in faults]
    groups = [
        ProcessGroup(each, rank, len(faults), timeout_s=1800.0)
        for rank, each in enumerate(stores)
    ]
    return [Votes(group, "Net/0") for group in groups]


def agreed(
    each: list[Votes], *, seconds: list[float], whats: list[Any] | None = None
) -> list[Vote | None]:
    """What each rank concludes that votes for the compiled code, all at once."""

    def vote(rank: int) -> Vote | None:
        own = Vote(rank, what=whats[rank] if whats else None)
        others = {*range(len(each))} - {rank}
        until = time.monotonic() + seconds[rank]
        return each[rank].agree("f", own, others, until=until)

    with ThreadPoolExecutor(len(seconds)) as pool:
        return [*pool.map(vote, range(len(seconds)))]


def test_ranks_that_all_compiled_use_the_code() -> None:
    assert agreed(ranks(None, None, None), seconds=[LONG_S] * 3) == [None] * 3


def test_the_others_follow_a_rank_that_fails_without_waiting_for_it() -> None:
    first, second = ranks(None, None)
    second.say("f", FAILURE)
    assert agreed([first, second], seconds=[LONG_S]) == [FAILURE]


def test_a_rank_that_comes_late_follows_the_one_that_has_given_up() -> None:
    first, second = ranks(None, None)
    [given_up] = agreed([first, second], seconds=[SHORT_S])
    assert given_up is not None and (given_up.rank, given_up.kind) == (1, "no answer")
    # It could compile, and sees that the other one could too.
    answer = second.agree("f", Vote(1), {0}, until=time.monotonic() + LONG_S)
    assert answer == given_up


def test_ranks_with_different_packs_use_none() -> None:
    whats = [{"pack": "a"}, {"pack": "b"}]
    assert None not in agreed(ranks(None, None), seconds=[LONG_S] * 2, whats=whats)


def test_a_lone_recompile_waits_for_nobody() -> None:
    first, second = ranks(None, None)
    own, until = Vote(0), time.monotonic() + LONG_S
    assert first.agree("f/2", own, {1}, until=until, only="begun/f/2") is None
    second.say("begun/f/3", Vote(1))
    second.say("f/3", FAILURE)
    assert first.agree("f/3", own, {1}, until=until, only="begun/f/3") == FAILURE


@pytest.mark.parametrize("fault", ["raises", "hangs"])
@pytest.mark.parametrize("at", [("set", "f/"), ("check", "f/")])
def test_a_rank_that_loses_the_store_runs_eager_in_time(
    at: tuple[str, str], fault: str
) -> None:
    both = ranks(None, (*at, fault))
    began = time.monotonic()
    first, second = agreed(both, seconds=[SHORT_S] * 2)
    assert time.monotonic() - began < 5
    assert second is not None and second.kind == "no store"
    if at[0] == "set":  # it could not vote
        assert first is not None and first.kind == "no answer"
    both[1].say("g", FAILURE)  # from now on it does not try
    assert time.monotonic() - began < 5


# -- graphs ----------------------------------------------------------------------------


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def captured(model: Any, *args: Any) -> set[frozenset[int]]:
    found: set[frozenset[int]] = set()

    def keep(gm: Any, inputs: Any) -> Any:
        found.update(process_groups.groups_in_graph(gm))
        return gm.forward

    torch.compile(model, backend=keep)(*args)
    return found


def test_collectives_in_graphs(one_rank: None, fresh_compiler: None) -> None:
    def reduced(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y

    assert captured(reduced, torch.ones(2)) == {frozenset({0})}
    assert captured(lambda x: x * 2, torch.ones(2)) == set()
    assert process_groups.default_group() is None  # of one rank


@pytest.mark.parametrize(
    ("groups", "ranks"),
    [
        ([], set()),
        ([{0, 1}], {1}),
        ([{0, 1}, {0, 1, 2, 3}], {1, 2, 3}),
        ([{0, 1}, {0, 2}], {1, 2, 3}),  # rows and columns: 1 and 2 decide with 3
    ],
)
def test_ranks_of_groups_that_overlap_decide_with_all(
    monkeypatch: pytest.MonkeyPatch, groups: list[set[int]], ranks: set[int]
) -> None:
    group = ProcessGroup(dist.HashStore(), 0, world_size=4, timeout_s=1800.0)
    agreement = Agreement(group, Telemetry("Net", None))
    found = frozenset(map(frozenset, groups))
    monkeypatch.setattr(process_groups, "groups_in_graph", lambda gm: found)
    graph: Any = None
    assert agreement.ranks_in(graph) == ranks
