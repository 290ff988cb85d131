"""Work of known cost: what a measurement of it must say is known beforehand.

Each kind of work takes time in proportion to the amount it is given; `calibrate` finds
the amount that takes a given time. Loops that make integers are no such work: whether
Python's allocator finds a free block at once differs by 15 percent between processes.

`equal` and `tenth` are targets for `torchproof bench`: compiled, `equal` does the same
work as in eager, `tenth` 10 parts of it where eager does 11.
"""

import functools
import hashlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy

Work = Callable[[int], None]

# Of the targets, in eager: some 20 ms, of which calling the compiled function takes
# less than a hundredth. A fixed amount: all processes must do the same.
AMOUNT = 44_000

_stream = numpy.ones(1024 * 1024)  # 8 MiB: more than the caches of one core hold


def compute(amount: int) -> None:
    hashlib.pbkdf2_hmac("sha256", b"spin", b"salt", amount)


def interpret(amount: int) -> None:
    for _ in itertools.repeat(None, amount):
        pass


def stream(amount: int) -> None:
    """Reads and writes memory, 64 KiB for each unit of the amount."""
    for start in range(0, amount * 8192, len(_stream)):
        block = _stream[: amount * 8192 - start]
        numpy.add(block, 1.0, out=block)


def layers(amount: int) -> None:
    """Layers of a small network, on one thread."""
    import torch

    with torch.inference_mode():
        module, x = _network()
        for _ in range(amount):
            x = module(x)


@functools.cache
def _network() -> tuple[Any, Any]:
    import torch

    torch.set_num_threads(1)
    module = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64))
    return module, torch.ones(8, 64)


KINDS: dict[str, Work] = {
    "compute": compute,
    "interpret": interpret,
    "stream": stream,
    "layers": layers,
}


def calibrate(kind: str, step_ms: float) -> int:
    """The amount of work that takes so long here, when nothing interrupts it."""
    work, amount = KINDS[kind], 1
    while _best_ms(work, amount) < step_ms / 2:
        amount *= 2
    return max(1, round(amount * step_ms / _best_ms(work, amount)))


def _best_ms(work: Work, amount: int) -> float:
    """The shortest of several times: interruptions only make them longer."""
    times = []
    for _ in range(9):
        start = time.perf_counter()
        work(amount)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


# -- targets ---------------------------------------------------------------------------


def equal() -> tuple[Any, list[tuple[Any, ...]]]:
    """Takes as long compiled as in eager."""
    return _target(compiled_amount=AMOUNT)


def tenth() -> tuple[Any, list[tuple[Any, ...]]]:
    """Is 1.10 times as fast compiled as in eager."""
    return _target(compiled_amount=AMOUNT * 10 // 11)


def _target(compiled_amount: int) -> tuple[Any, list[tuple[Any, ...]]]:
    import torch

    @torch.library.custom_op("torchproof_spin::work", mutates_args=())
    def work(x: torch.Tensor, amount: int) -> torch.Tensor:
        compute(amount)
        return x.clone()

    @work.register_fake
    def _(x: torch.Tensor, amount: int) -> torch.Tensor:
        return torch.empty_like(x)

    def step(x: torch.Tensor) -> torch.Tensor:
        amount = compiled_amount if torch.compiler.is_compiling() else AMOUNT
        done: torch.Tensor = work(x, amount)
        return done

    return step, [(torch.ones(8),)]
