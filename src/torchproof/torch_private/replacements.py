"""Replaces attributes of torch while something is compiled, and puts them back.

A `Replacement` is entered by each compilation that needs it. The first one replaces the
attributes, the last one restores them: while nothing is compiled, torch is as it was.
What the replaced functions do for one compilation alone, they find in a context
variable, so that compilations of other code in other threads run as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torchproof.process import forks

Wrap = Callable[[Any], Any]
Place = tuple[Any, str, Wrap]  # the owner, the attribute, and what makes the new value


class Staying(NamedTuple):
    """An attribute of torch that is replaced for good once a module was compiled."""

    name: str
    why: str
    without: str


STAYING = (
    Staying(
        "nn.Module.__setstate__",
        "Python tells nobody else that `copy.copy` has copied a module",
        "a shallow copy calls the `forward` of the original, with its attributes",
    ),
    Staying(
        "nn.Module._replicate_for_data_parallel",
        "the same for the copies that `nn.DataParallel` makes for other devices",
        "a copy runs with the parameters of the original, on another device",
    ),
)


class Replacement:
    """Attributes that are replaced as long as a body of `active()` runs.

    `find` imports the owners. A class's method is passed to `wrap` as the class holds
    it: a `classmethod`, for example.
    """

    def __init__(self, find: Callable[[], Iterable[Place]]) -> None:
        self._find = find
        self._lock = forks.rlock()
        self._users = 0
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        with ExitStack() as stack:
            with self._lock:
                if not self._users:
                    self._replace()
                self._users += 1
                stack.callback(self._leave)
            # A compilation of another thread does not go on in a fork.
            stack.enter_context(forks.undone_in_fork(self._leave))
            yield

    def _replace(self) -> None:
        try:
            for owner, name, wrap in self._find():
                is_class = isinstance(owner, type)
                original = owner.__dict__[name] if is_class else getattr(owner, name)
                value = wrap(original)
                self._replaced.append((owner, name, original, value))
                setattr(owner, name, value)
        except BaseException:
            self._restore()
            raise

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._restore()

    def _restore(self) -> None:
        while self._replaced:
            owner, name, original, value = self._replaced.pop()
            # Another tool may have replaced it meanwhile, and restores it itself.
            if vars(owner).get(name) is value:
                setattr(owner, name, original)
