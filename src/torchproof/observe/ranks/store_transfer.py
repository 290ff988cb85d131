"""Sends the streams of other hosts to rank 0, through the store of the process group.

Only a launch on several hosts needs it, and only if they do not share the folder in
which the ranks meet. A thread of each rank sends what is new in its stream, so that a
rank that is killed has sent all but its last moments.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchproof.observe.ranks.launched import Place
from torchproof.observe.ranks.rank_streams import stream_path

_INTERVAL_S = 1.0
_CONNECT_S = 30.0
_LAST_WORDS_S = 20.0  # that rank 0 waits for the last entries of other hosts
_TOKEN = "token"  # a file of rank 0: whoever sees it shares the folder


def may_need_transfer(variables: Mapping[str, str]) -> bool:
    """Whether the launch may have ranks on other hosts."""
    local = variables.get("LOCAL_WORLD_SIZE")
    return local != variables.get("WORLD_SIZE")


class StoreTransfer:
    """The thread of one rank: rank 0 receives, the others send."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._place = place
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="torchproof-transfer", daemon=True
        )
        self._sent_bytes = 0
        self._chunks = dict.fromkeys(range(place.world_size), 0)
        self._open = set(range(1, place.world_size))  # that may still send
        self._code: int | None = None

    def start(self) -> None:
        self._thread.start()

    def close(self, code: int) -> None:
        """Sends, or receives, what is left; `code` is the exit code of this rank."""
        self._code = code
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_WORDS_S + _INTERVAL_S)

    def _run(self) -> None:
        # The program's group may be gone at any time: its error is not one of the rank.
        with contextlib.suppress(Exception):
            store = self._store()
            if store is None:
                return
            if self._place.rank == 0:
                self._receive(store)
            else:
                if not self._shares_folder(store):
                    self._send(store)
                store.set(f"{self._place.rank}/end", b"1")

    def _store(self) -> Any:
        """A connection of its own to the store; None if the program made no group."""
        while not self._stop.wait(_INTERVAL_S):
            dist: Any = sys.modules.get("torch.distributed")
            if dist is not None and dist.is_available() and dist.is_initialized():
                timeout = datetime.timedelta(seconds=_CONNECT_S)
                host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
                store = dist.TCPStore(host, port, is_master=False, timeout=timeout)
                return dist.PrefixStore("torchproof", store)
        return None

    # -- the other ranks ---------------------------------------------------------------

    def _shares_folder(self, store: Any) -> bool:
        token: str = store.get(_TOKEN).decode()
        try:
            return (self._folder / _TOKEN).read_text(encoding="utf-8") == token
        except FileNotFoundError:
            return False

    def _send(self, store: Any) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._send_news(store)
        self._send_news(store)
        # The supervisor writes the end of the rank, too late for the store.
        end = {"kind": "rank_end", "at": time.monotonic(), "code": self._code}
        self._send_bytes(store, json.dumps({**end, "ending": "finished"}).encode())

    def _send_news(self, store: Any) -> None:
        with stream_path(self._folder, self._place.rank).open("rb") as file:
            file.seek(self._sent_bytes)
            news = file.read()
        whole = news.rpartition(b"\n")[0]
        if whole:
            self._sent_bytes += len(whole) + 1
            self._send_bytes(store, whole)

    def _send_bytes(self, store: Any, lines: bytes) -> None:
        rank = self._place.rank
        store.set(f"{rank}/{self._chunks[rank]}", lines + b"\n")
        self._chunks[rank] += 1

    # -- rank 0 ------------------------------------------------------------------------

    def _receive(self, store: Any) -> None:
        token = uuid.uuid4().hex
        (self._folder / _TOKEN).write_text(token, encoding="utf-8")
        store.set(_TOKEN, token)
        while not self._stop.wait(_INTERVAL_S):
            self._receive_news(store)
        until = time.monotonic() + _LAST_WORDS_S
        while self._open and time.monotonic() < until:
            self._receive_news(store)
            time.sleep(_INTERVAL_S / 10)

    def _receive_news(self, store: Any) -> None:
        for rank in sorted(self._open):
            ended = store.check([f"{rank}/end"])
            while store.check([key := f"{rank}/{self._chunks[rank]}"]):
                with stream_path(self._folder, rank).open("ab") as file:
                    file.write(store.get(key))
                store.delete_key(key)
                self._chunks[rank] += 1
            if ended:
                self._open.discard(rank)
