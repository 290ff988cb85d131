"""What the ranks of a distributed run write about one model for each other to read.

The messages lie in the store of the process group, which every rank reads and writes
without a collective. No read waits for a message.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NO_ANSWER = "no answer"  # the kind of a notice about a rank that wrote nothing
NO_STORE = "no store"  # the kind of a notice of a rank whose store does not answer


class StoreLost(Exception):
    """The store fails or does not answer: the rank that serves it may have ended."""


@dataclass(frozen=True)
class Notice:
    """A rank runs something eager: a function, a graph or "the model", and why.

    `call` is the number of the call in which the rank decided it.
    """

    rank: int
    what: str
    kind: str
    why: str
    call: int | None = None

    @property
    def is_doubt(self) -> bool:
        """Whether it is unknown what a rank does: then the whole model runs eager."""
        return self.kind in (NO_ANSWER, NO_STORE)

    def __str__(self) -> str:
        if self.is_doubt:
            return f"rank {self.rank} {self.why}"
        return f"rank {self.rank}: {self.what} runs eager ({self.kind}): {self.why}"


class RankMessages:
    """The messages about one model; `attempt` is counted up by `torchproof.retry`."""

    def __init__(self, store: Any, rank: int, model: str, *, attempt: int = 0) -> None:
        self.rank = rank
        self._prefix = f"torchproof/{model}/{attempt}"
        self._store = store
        self._unread: set[int] = set()  # notices that were numbered, but not written
        self._numbered = 0

    # -- what a rank says --------------------------------------------------------------

    def set_strategy(self, strategy: str) -> None:
        self._set(f"strategy/{self.rank}", strategy)

    def strategy_of(self, rank: int) -> str | None:
        """None before the first call of the rank."""
        return self._get(f"strategy/{rank}")

    def begin(self, subject: str) -> None:
        """Says that this rank will vote on the subject."""
        self._set(f"begin/{subject}/{self.rank}", "1")

    def has_begun(self, subject: str, rank: int) -> bool:
        return self._get(f"begin/{subject}/{rank}") is not None

    def vote(self, subject: str, objection: Notice | None) -> None:
        self._set(f"vote/{subject}/{self.rank}", _dumps(objection))

    def vote_of(self, subject: str, rank: int) -> tuple[bool, Notice | None]:
        """Whether the rank has voted, and its objection."""
        text = self._get(f"vote/{subject}/{rank}")
        return text is not None, _loads(text)

    def confirm(self, subject: str) -> None:
        """Says that this rank has read the votes of all ranks that vote."""
        self._set(f"confirmed/{subject}/{self.rank}", "1")

    def has_confirmed(self, subject: str, rank: int) -> bool:
        return self._get(f"confirmed/{subject}/{rank}") is not None

    def use(self, subject: str) -> None:
        """Says that this rank has read the decision and uses its code."""
        self._set(f"used/{subject}/{self.rank}", "1")

    def uses(self, subject: str, rank: int) -> bool:
        return self._get(f"used/{subject}/{rank}") is not None

    def beat(self, count: int) -> None:
        """Says that this rank reaches the store, and looks for meetings."""
        self._set(f"beat/{self.rank}", str(count))

    def beat_of(self, rank: int) -> str | None:
        """Changes as long as the rank looks; None before it has begun to."""
        return self._get(f"beat/{rank}")

    # -- decisions, of which the first one counts --------------------------------------

    def decide(self, subject: str, objection: Notice | None) -> Notice | None:
        """Writes the decision unless there is one; returns the one that counts."""
        key = f"decision/{subject}"
        return _loads(self._first(key, _dumps(objection)))

    def is_decided(self, subject: str) -> bool:
        return self._get(f"decision/{subject}") is not None

    def decide_call(self, subject: str, call: int) -> int:
        return int(self._first(f"decision/{subject}", str(call)))

    def _first(self, key: str, value: str) -> str:
        answer: bytes = self._do(
            lambda: self._store.compare_set(self._key(key), "", value)
        )
        return answer.decode()

    # -- meetings ----------------------------------------------------------------------

    def call_meeting(self, why: Notice) -> None:
        """Asks all ranks to agree on the call at which they switch to eager."""
        self._first("meeting", _dumps(why))

    def meeting(self) -> Notice | None:
        return _loads(self._get("meeting"))

    def arrive(self, call: int) -> None:
        self._set(f"arrival/{self.rank}", str(call))

    def arrival_of(self, rank: int) -> int | None:
        text = self._get(f"arrival/{rank}")
        return None if text is None else int(text)

    # -- notices -----------------------------------------------------------------------

    def notify(self, notice: Notice) -> None:
        number = self._do(lambda: self._store.add(self._key("notices"), 1))
        self._set(f"notice/{number}", _dumps(notice))

    def new_notices(self) -> list[Notice]:
        """The notices of other ranks that this object has not returned yet."""
        count = self._do(lambda: self._store.add(self._key("notices"), 0))
        self._unread |= set(range(self._numbered + 1, count + 1))
        self._numbered = max(count, self._numbered)
        notices = []
        for number in sorted(self._unread):
            notice = _loads(self._get(f"notice/{number}"))
            if notice is not None:
                self._unread.discard(number)
                notices.append(notice)
        return [each for each in notices if each.rank != self.rank]

    # -- the store ---------------------------------------------------------------------

    def _set(self, key: str, value: str) -> None:
        self._do(lambda: self._store.set(self._key(key), value))

    def _get(self, key: str) -> str | None:
        if not self._do(lambda: self._store.check([self._key(key)])):
            return None  # `get` would wait for it
        value: bytes = self._do(lambda: self._store.get(self._key(key)))
        return value.decode()

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _do(self, operation: Callable[[], Any]) -> Any:
        try:
            return operation()
        except Exception as error:  # stores of other libraries raise errors of theirs
            lines = str(error).splitlines()
            raise StoreLost(lines[0] if lines else type(error).__name__) from None


def _dumps(notice: Notice | None) -> str:
    return json.dumps(None if notice is None else dataclasses.asdict(notice))


def _loads(text: str | None) -> Notice | None:
    fields = None if text is None else json.loads(text)
    return None if fields is None else Notice(**fields)
