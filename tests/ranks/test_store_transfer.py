"""Streams of other hosts reach rank 0 through a store, here a dictionary."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from torchproof.observe.ranks import Place
from torchproof.observe.ranks.rank_streams import RankStream, read_stream, stream_path
from torchproof.observe.ranks.store_transfer import StoreTransfer, may_need_transfer


class DictStore(dict[str, bytes]):
    """What the transfer uses of a `torch.distributed.Store`."""

    def set(self, key: str, value: str | bytes) -> None:
        self[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def delete_key(self, key: str) -> None:
        del self[key]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> DictStore:
    store = DictStore()
    monkeypatch.setattr(StoreTransfer, "_store", lambda self: store)
    return store


def transfer(rank: int, folder: Path) -> StoreTransfer:
    folder.mkdir(exist_ok=True)
    started = StoreTransfer(Place(rank, 2, 0), folder)
    started.start()
    return started


def wait_for_token(store: DictStore) -> None:
    while "token" not in store:
        time.sleep(0.01)


def kinds(folder: Path, rank: int) -> list[Any]:
    return [entry["kind"] for entry in read_stream(stream_path(folder, rank))]


def test_rank_0_gets_the_stream_of_another_host(
    tmp_path: Path, store: DictStore
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    receiver = transfer(0, here)
    wait_for_token(store)
    sender = transfer(1, there)
    stream = RankStream(stream_path(there, 1))
    stream.write("step", number=0)
    sender.close(3)
    receiver.close(0)
    assert kinds(here, 1) == ["step", "rank_end"]
    assert read_stream(stream_path(here, 1))[-1]["code"] == 3
    assert set(store) == {"token", "1/end"}


def test_a_shared_folder_needs_no_transfer(tmp_path: Path, store: DictStore) -> None:
    receiver = transfer(0, tmp_path)
    wait_for_token(store)
    sender = transfer(1, tmp_path)
    RankStream(stream_path(tmp_path, 1)).write("step", number=0)
    sender.close(0)
    receiver.close(0)
    assert kinds(tmp_path, 1) == ["step"] and set(store) == {"token", "1/end"}


def test_ranks_of_one_host_need_no_transfer() -> None:
    assert not may_need_transfer({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
    assert may_need_transfer({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    assert may_need_transfer({"WORLD_SIZE": "4"})  # Slurm says nothing of the host
