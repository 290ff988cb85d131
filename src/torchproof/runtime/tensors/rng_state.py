"""The state of everything random: taken, compared, put back.

In come the devices and generators in use. Out goes a `RngState`. Covered are torch's
generators on the CPU and on CUDA devices, generators passed around as objects, Python's
`random`, and numpy's global one where numpy is loaded.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchproof.process import forks


@dataclass(frozen=True)
class RngState:
    """Where each source of random numbers stood."""

    host: torch.Tensor
    devices: tuple[tuple[torch.device, torch.Tensor], ...]
    generators: tuple[tuple[torch.Generator, torch.Tensor], ...]
    python: Any
    numpy: Any  # None where numpy is not loaded

    @classmethod
    def taken(
        cls,
        devices: Iterable[torch.device] = (),
        generators: Iterable[torch.Generator] = (),
    ) -> RngState:
        cuda = {device for device in devices if device.type == "cuda"}
        if torch.cuda.is_initialized():
            cuda.add(torch.device("cuda", torch.cuda.current_device()))
        numpy = sys.modules.get("numpy")
        return cls(
            torch.get_rng_state(),
            tuple((device, torch.cuda.get_rng_state(device)) for device in cuda),
            tuple((each, each.get_state()) for each in generators),
            random.getstate(),
            numpy.random.get_state() if numpy is not None else None,
        )

    def again(self) -> RngState:
        """Where the same sources stand at this moment."""
        return RngState.taken(
            [device for device, _ in self.devices],
            [generator for generator, _ in self.generators],
        )

    def restore(self) -> None:
        torch.set_rng_state(self.host)
        for device, state in self.devices:
            torch.cuda.set_rng_state(state, device)
        for generator, state in self.generators:
            generator.set_state(state)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

    def moved(self, later: RngState) -> set[str]:
        """Which of "torch", "numpy" and "python" have been drawn from since."""
        here, there = self._digests(), later._digests()
        return {name for name in here if here[name] != there.get(name, here[name])}

    def summary(self) -> dict[str, str]:
        """A seed, where there is one, and a fingerprint of each source."""
        return {"seed": str(torch.initial_seed()), **self._digests()}

    def _digests(self) -> dict[str, str]:
        states = [self.host, *(s for _, s in self.devices + self.generators)]
        found = {
            "torch": _digest(b"".join(state.numpy().tobytes() for state in states)),
            "python": _digest(repr(self.python).encode()),
        }
        if self.numpy is not None:
            # A tuple with an array in it, which `repr` would shorten.
            plain = [*map(_exactly, self.numpy)]
            found["numpy"] = _digest(repr(plain).encode())
        return found


def _exactly(value: Any) -> Any:
    return value.tobytes() if hasattr(value, "tobytes") else value


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


# -- left alone ------------------------------------------------------------------------

_SETTERS: tuple[tuple[Any, str], ...] = (
    (torch.random, "set_rng_state"),
    (torch.cuda, "set_rng_state"),
    (random, "setstate"),
)
_is_left_alone: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar(
    "torchproof_is_left_alone", default=lambda: False
)
_counting = forks.lock()
_leaving = 0  # how many do


@contextlib.contextmanager
def left_alone(when: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Nothing random is put back meanwhile, in this context, when that is so.

    A compiler that works behind its callers would put it back to where it was when it
    began, and they would draw the same numbers twice.
    """
    global _leaving
    token = _is_left_alone.set(when)
    with _counting:
        if not _leaving:
            for module, name in _SETTERS:
                setattr(module, name, _unless_left(getattr(module, name)))
        _leaving += 1
    try:
        with forks.undone_in_fork(_end_leaving):
            yield
    finally:
        _end_leaving()
        _is_left_alone.reset(token)


def _end_leaving() -> None:
    global _leaving
    with _counting:
        _leaving -= 1
        if not _leaving:
            for module, name in _SETTERS:
                now = getattr(module, name)
                # In a fork, the thread that wrapped them may have been at it.
                setattr(module, name, getattr(now, "__wrapped__", now))


def _unless_left(put_back: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(put_back)
    def unless_left(*args: Any, **kwargs: Any) -> None:
        if not _is_left_alone.get()():
            put_back(*args, **kwargs)

    return unless_left
