"""Captures, compares and restores the state of random number generators.

`RngState.capture` takes the devices and generators in use. It covers torch's generators
on the CPU and on CUDA devices, generators passed around as objects, Python's `random`,
and numpy's global generator if numpy is loaded.
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

from torchproof.torch_private.replacements import Replacement


@dataclass(frozen=True)
class RngState:
    """The state of each source of random numbers."""

    host: torch.Tensor
    devices: tuple[tuple[torch.device, torch.Tensor], ...]
    generators: tuple[tuple[torch.Generator, torch.Tensor], ...]
    python: Any
    numpy: Any  # None if numpy is not loaded

    @classmethod
    def capture(
        cls,
        devices: Iterable[torch.device] = (),
        generators: Iterable[torch.Generator] = (),
    ) -> RngState:
        cuda = {device for device in devices if device.type == "cuda"}
        if torch.cuda.is_initialized():
            cuda.add(torch.device("cuda", torch.cuda.current_device()))
        numpy = sys.modules.get("numpy")
        return cls(
            host=torch.get_rng_state(),
            devices=tuple((each, torch.cuda.get_rng_state(each)) for each in cuda),
            generators=tuple((each, each.get_state()) for each in generators),
            python=random.getstate(),
            numpy=numpy.random.get_state() if numpy is not None else None,
        )

    def current(self) -> RngState:
        """The present state of the same sources."""
        return RngState.capture(
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

    def drawn_since(self, later: RngState) -> set[str]:
        """Which of "torch", "numpy" and "python" were drawn from before `later`."""
        before, after = self._digests(), later._digests()
        return {
            name for name in before if before[name] != after.get(name, before[name])
        }

    def _digests(self) -> dict[str, str]:
        states = [self.host, *(s for _, s in self.devices + self.generators)]
        digests = {
            "torch": _digest(b"".join(state.numpy().tobytes() for state in states)),
            "python": _digest(repr(self.python).encode()),
        }
        if self.numpy is not None:
            # The state contains an array, and `repr` would shorten it.
            plain = [*map(_exactly, self.numpy)]
            digests["numpy"] = _digest(repr(plain).encode())
        return digests


def _exactly(value: Any) -> Any:
    return value.tobytes() if hasattr(value, "tobytes") else value


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


# -- suppressing restores --------------------------------------------------------------

_is_suppressed = contextvars.ContextVar("torchproof_rng_suppressed", default=False)


@contextlib.contextmanager
def restores_suppressed() -> Iterator[None]:
    """Ignores calls that set RNG states, in this context.

    A compiler in the background would set the generators back to their state at its
    start, and callers would draw the same numbers twice.
    """
    token = _is_suppressed.set(True)
    try:
        with _setters.active():
            yield
    finally:
        _is_suppressed.reset(token)


def _unless_suppressed(setter: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(setter)
    def unless_suppressed(*args: Any, **kwargs: Any) -> None:
        if not _is_suppressed.get():
            setter(*args, **kwargs)

    return unless_suppressed


_setters = Replacement(
    lambda: [
        (torch.random, "set_rng_state", _unless_suppressed),
        (torch.cuda, "set_rng_state", _unless_suppressed),
        (random, "setstate", _unless_suppressed),
    ]
)
