"""Streams of other hosts reach rank 0 through a store, here one of this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from waiting import wait_for

from torchproof.observe.ranks import Place
from torchproof.observe.ranks.rank_streams import RankStream, read_stream, stream_path
from torchproof.observe.ranks.store_transfer import StoreTransfer, may_need_transfer


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.HashStore:
    store = dist.HashStore()
    monkeypatch.setattr(StoreTransfer, "_store", lambda self: store)
    return store


def transfer(rank: int, folder: Path) -> StoreTransfer:
    folder.mkdir(exist_ok=True)
    started = StoreTransfer(Place(rank, 2, 0), folder)
    started.start()
    return started


def kinds(folder: Path, rank: int) -> list[Any]:
    return [entry["kind"] for entry in read_stream(stream_path(folder, rank))]


def test_rank_0_gets_the_stream_of_another_host(
    tmp_path: Path, store: dist.HashStore
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    receiver = transfer(0, here)
    wait_for(lambda: store.check(["token"]))
    sender = transfer(1, there)
    stream = RankStream(stream_path(there, 1))
    stream.write("step", number=0)
    sender.close(3)
    receiver.close(0)
    assert kinds(here, 1) == ["step", "rank_end"]
    assert read_stream(stream_path(here, 1))[-1]["code"] == 3
    assert store.check(["token", "1/end"]) and store.num_keys() == 2


def test_a_shared_folder_needs_no_transfer(
    tmp_path: Path, store: dist.HashStore
) -> None:
    receiver = transfer(0, tmp_path)
    wait_for(lambda: store.check(["token"]))
    sender = transfer(1, tmp_path)
    RankStream(stream_path(tmp_path, 1)).write("step", number=0)
    sender.close(0)
    receiver.close(0)
    assert kinds(tmp_path, 1) == ["step"] and store.num_keys() == 2


def test_ranks_of_one_host_need_no_transfer() -> None:
    assert not may_need_transfer({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
    assert may_need_transfer({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    assert may_need_transfer({"WORLD_SIZE": "4"})  # Slurm says nothing of the host
