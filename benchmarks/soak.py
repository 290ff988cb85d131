"""Thousands of calls with random sizes and random faults, from several threads at once.

    python benchmarks/soak.py [--calls 10000] [--seed 0] [--write]

Four threads call three models whose compilers sometimes raise, sometimes never return;
a stretch with Inductor follows, whose child is killed at random. Every answer and every
gradient is compared with eager's. Exit code 1 when one is wrong, or when the second
half of the calls needs more memory, threads, processes or files than the first.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import gc
import itertools
import json
import logging
import os
import platform
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import torch._inductor.compile_fx  # so that no deadline is spent on loading it
from torch import nn

from torchproof.runtime import compile_job
from torchproof.runtime import production as runtime

HERE = Path(__file__).resolve().parent
THREADS, MODELS = 4, 3
DEADLINE_S = 1.0
# Torch keeps compiled code with the function it was made of, for ever: 0.3 MiB of each
# compilation of this model, as measured with torch.compile alone.
KEPT_BYTES, SLACK_BYTES = 512 << 10, 16 << 20


@dataclass(frozen=True)
class Holding:
    """What the process holds at one moment."""

    memory_bytes: int
    threads: int
    processes: int
    files: int


@dataclass(frozen=True)
class Soak:
    """What calls came to; `held` is the most of the first and of the second half."""

    calls: int
    wrong: tuple[str, ...]
    compilations: int
    faults: dict[str, int]
    fallbacks: dict[str, int]
    held: tuple[Holding, Holding]
    seconds: float

    @property
    def growth(self) -> list[str]:
        """What the second half needed more of."""
        first, second = self.held
        limit = first.memory_bytes + KEPT_BYTES * self.compilations + SLACK_BYTES
        grown = [] if second.memory_bytes <= limit else ["memory_bytes"]
        counted = ("threads", "processes", "files")
        return grown + [n for n in counted if getattr(second, n) > getattr(first, n)]

    @property
    def ok(self) -> bool:
        return not self.wrong and not self.growth


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.scale = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.layers(x) * self.scale + x.mean()
        return answer


class FlakyBackend:
    """Runs graphs as they are, but for those it raises on, and those it hangs on."""

    def __init__(self, chance: random.Random, faults: Counter[str]) -> None:
        self._chance = chance
        self._faults = faults

    def __call__(self, gm: Any, inputs: Any) -> Callable[..., Any]:
        throw = self._chance.random()
        if throw < 0.02:
            self._faults["hangs"] += 1
            while True:
                time.sleep(0.001)
        if throw < 0.20:
            self._faults["raises"] += 1
            raise RuntimeError("planted")
        if throw < 0.40:
            self._faults["first run fails"] += 1
            return self._failing
        return gm.forward  # type: ignore[no-any-return]

    def _failing(self, *args: Any) -> Any:
        torch.rand(2)
        raise torch.OutOfMemoryError("planted")


class Caller:
    """Calls models with random sizes, in inference and for gradients."""

    def __init__(self, pairs: list[tuple[Model, Model]], seed: int) -> None:
        self._pairs = pairs
        self._chance = random.Random(seed)
        self.wrong: list[str] = []

    def call(self) -> None:
        model, twin = self._chance.choice(self._pairs)
        x = torch.full((self._chance.randint(1, 24), 8), self._chance.random())
        if self._chance.random() < 0.02:
            runtime.retry(model)
        if self._chance.random() < 0.3:
            answer, expected = _gradient(model, x), _gradient(twin, x)
        else:
            with torch.no_grad():
                answer, expected = model(x), twin(x)
        if not torch.allclose(answer, expected, rtol=1e-4, atol=1e-5):
            self.wrong.append(f"{tuple(x.shape)}: {answer} is not {expected}")


def _gradient(model: Model, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    weights = [x, *model.parameters()]
    grads = torch.autograd.grad((model(x) ** 2).sum(), weights)
    return torch.cat([grad.flatten() for grad in grads])


class Counts:
    """What the models tell through `on_event`, and what was done to them."""

    def __init__(self) -> None:
        self.compilations = 0
        self.fallbacks: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.wrong: list[str] = []

    def note(self, kind: str, record: Mapping[str, Any]) -> None:
        if kind == "compilation":
            self.compilations += 1
        elif kind == "fallback":
            self.fallbacks[record["kind"]] += 1
            if record["kind"] != "deadline" and not _is_planted(record["why"]):
                self.wrong.append(f"{record['what']}: {record['why']}")


def _is_planted(why: str) -> bool:
    return "planted" in why or "SIGKILL" in why


def soak(calls: int, seed: int, checkpoints: int) -> Soak:
    """Faulty compilers, without Inductor."""
    counts = Counts()
    backend = FlakyBackend(random.Random(seed), counts.faults)
    seeds = itertools.count(seed)

    def callers() -> list[Caller]:
        told = {"backend": backend, "deadline": DEADLINE_S}
        pairs = [_pair(counts, **told) for _ in range(MODELS)]
        return [Caller(pairs, next(seeds)) for _ in range(THREADS)]

    return _soaked(callers, counts, calls=calls, checkpoints=checkpoints)


def soak_inductor(calls: int, seed: int, checkpoints: int) -> Soak:
    """Inductor, whose child is killed at work, and at other times."""
    counts, seeds = Counts(), itertools.count(seed)

    def callers() -> list[Caller]:
        pairs = [_pair(counts)]
        return [Caller(pairs, next(seeds)) for _ in range(2)]

    with _killing_children(random.Random(seed), counts.faults):
        return _soaked(callers, counts, calls=calls, checkpoints=checkpoints)


def _pair(counts: Counts, **arguments: Any) -> tuple[Model, Model]:
    model = Model()
    twin = copy.deepcopy(model)
    runtime.compile(model, on_event=counts.note, **arguments)
    return model, twin


@contextlib.contextmanager
def _killing_children(chance: random.Random, faults: Counter[str]) -> Iterator[None]:
    over = threading.Event()

    def kill() -> None:
        while not over.wait(chance.uniform(3, 15)):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if "torchproof.runtime.child" in child.cmdline():
                        child.kill()
                        faults["child killed"] += 1

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()
        compile_job.shared_worker().close()


def _soaked(
    make_callers: Callable[[], list[Caller]],
    counts: Counts,
    *,
    calls: int,
    checkpoints: int,
) -> Soak:
    """Models live for one checkpoint; what they leave behind would add up."""
    begin, held, made = time.monotonic(), [], 0
    for number in range(checkpoints):
        callers = make_callers()
        share = calls // checkpoints // len(callers)
        _call_all(callers, share)
        made += share * len(callers)
        counts.wrong += [wrong for caller in callers for wrong in caller.wrong]
        del callers
        held.append(_holding())
        print(f"{number + 1}/{checkpoints} {held[-1]}", file=sys.stderr, flush=True)
    return Soak(
        made,
        tuple(counts.wrong),
        counts.compilations,
        dict(counts.faults),
        dict(counts.fallbacks),
        (_most(held[: checkpoints // 2]), _most(held[checkpoints // 2 :])),
        time.monotonic() - begin,
    )


def _call_all(callers: list[Caller], times: int) -> None:
    """Each caller in a thread of its own, all at once."""
    with ThreadPoolExecutor(len(callers)) as pool:
        begun = [pool.submit(_call, caller, times) for caller in callers]
        for one in begun:
            one.result()


def _call(caller: Caller, times: int) -> None:
    for _ in range(times):
        caller.call()


def _holding() -> Holding:
    gc.collect()
    me = psutil.Process()
    return Holding(
        me.memory_info().rss,
        threading.active_count(),
        len(me.children(recursive=True)),
        me.num_fds(),
    )


def _most(held: list[Holding]) -> Holding:
    fields = [field.name for field in dataclasses.fields(Holding)]
    return Holding(*(max(getattr(one, name) for one in held) for name in fields))


def lines(what: str, done: Soak) -> str:
    first, second = done.held
    told = [
        f"{what}: {done.calls} calls in {done.seconds:.0f} s, {len(done.wrong)} wrong,"
        f" {done.compilations} compilations",
        f"  faults {done.faults}, fallbacks {done.fallbacks}",
        *(
            f"  {name}: {getattr(first, name)} in the first half,"
            f" {getattr(second, name)} in the second"
            for name in ("memory_bytes", "threads", "processes", "files")
        ),
        *(f"  wrong: {wrong}" for wrong in done.wrong[:5]),
        *(f"  grown: {name}" for name in done.growth),
    ]
    return "\n".join(told)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--inductor-calls", type=int, default=2_000)
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()
    logging.getLogger("torchproof").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    told = (arguments.seed, arguments.checkpoints)
    found = {"faulty compilers": soak(arguments.calls, *told)}
    print(lines("faulty compilers", found["faulty compilers"]), flush=True)
    if arguments.inductor_calls:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            # Each compilation goes to the child, not to what an earlier one left.
            os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
            found["Inductor"] = soak_inductor(arguments.inductor_calls, *told)
        print(lines("Inductor", found["Inductor"]))
    if arguments.write:
        kept = {"torch": torch.__version__, "machine": {"arch": platform.machine()}}
        kept["soaks"] = {name: dataclasses.asdict(one) for name, one in found.items()}
        path = HERE / "results" / "soak-cpu.json"
        path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    return 0 if all(one.ok for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
