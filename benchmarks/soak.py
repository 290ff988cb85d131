"""Thousands of calls with random sizes, faults and changes, from several threads.

    python -m benchmarks.soak [ROW ...] [--quick] [--device cuda] [--calls N]

Four threads call three models whose compilers sometimes raise, sometimes never return.
Between calls the models are switched between train and eval, get other weights, are
retried, and are compiled anew by other recipes, of which two do not fit. Another row
uses Inductor, whose child is killed at random; benchmarks/replays.py does the same to
steps that `torchproof.graph` records. Every answer and every gradient is compared with
those of a twin in eager that goes through the same changes. Exit code 1 when one is
wrong, or when the second half of the calls needs more memory, threads, processes or
files than the first.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import itertools
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import torch._dynamo
import torch._inductor.compile_fx  # so that no deadline is spent on loading it
from torch import nn

from benchmarks.survey import Options, Row, Survey
from torchproof.runtime import compile_job
from torchproof.runtime import production as runtime

THREADS, MODELS = 4, 3
DEADLINE_S = 1.0
CHANGED = 0.03  # of the calls: a change comes before them
# Torch keeps a record of each compilation for ever: the source of its graphs, guards
# that failed, a cache entry without code. Measured with models of this class that are
# compiled, called and deleted one after the other: 20 KiB of each compilation.
KEPT_BYTES, SLACK_BYTES = 32 << 10, 16 << 20
# Another thread at work at once needs a workspace of cuBLAS, which torch then keeps.
DEVICE_SLACK_BYTES = 33 << 20
CHECKPOINTS = 10


@dataclass(frozen=True)
class Holding:
    """What the process holds at one moment."""

    memory_bytes: int
    threads: int
    processes: int
    files: int
    device_bytes: int | None = None


def growth(held: list[Holding], compilations: int) -> list[str]:
    """What the second half needed more of.

    Of what is counted, the least of the second half tells: a child that ends while it
    is counted has pipes for a moment, and what leaks adds up.
    """
    half = len(held) // 2
    first, second = _extreme(max, held[:half]), _extreme(max, held[half:])
    limit = first.memory_bytes + KEPT_BYTES * compilations + SLACK_BYTES
    grown = [] if second.memory_bytes <= limit else ["memory_bytes"]
    if first.device_bytes is not None and second.device_bytes is not None:
        on_device = first.device_bytes + DEVICE_SLACK_BYTES
        grown += [] if second.device_bytes <= on_device else ["device_bytes"]
    least, counted = _extreme(min, held[half:]), ("threads", "processes", "files")
    return grown + [n for n in counted if getattr(least, n) > getattr(first, n)]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.scale = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.layers(x) * self.scale + x.mean()
        return -answer if self.training else answer


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


class Pair:
    """A model and its twin: calls run together, a change runs alone."""

    def __init__(self, counts: Counts, device: str, **arguments: Any) -> None:
        self.model = Model().to(device)
        self.device = device
        self.twin = copy.deepcopy(self.model)
        self._counts = counts
        self._arguments = arguments
        self._condition = threading.Condition()
        self._calling = 0
        self._compile(**arguments)

    def _compile(self, **arguments: Any) -> None:
        runtime.compile(self.model, on_event=self._counts.note, **arguments)

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        with self._condition:
            self._calling += 1
        try:
            yield
        finally:
            with self._condition:
                self._calling -= 1
                self._condition.notify_all()

    def answers(
        self, x: torch.Tensor, *, gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The answers of the model and of its twin, or their gradients."""
        if gradient:
            return _gradient(self.model, x), _gradient(self.twin, x)
        with torch.no_grad():
            return self.model(x), self.twin(x)

    def change(self, chance: random.Random, recipes: Sequence[Path]) -> None:
        change = chance.choice((*CHANGES, "compiled anew", "retried"))
        with self._condition:
            self._condition.wait_for(lambda: not self._calling)
            if change == "compiled anew":
                self.count_compiled()
                self._compile_anew(chance.choice((None, None, *recipes)))
            elif change == "retried":
                runtime.retry(self.model)
            else:
                for each in (self.model, self.twin):
                    CHANGES[change](each)
        self._counts.changes[change] += 1

    def _compile_anew(self, recipe: Path | None) -> None:
        if recipe is None:
            self._compile(**self._arguments)
        else:
            self._compile(recipe=recipe, deadline=self._arguments["deadline"])

    def count_compiled(self) -> None:
        """Counts the calls that ran compiled code, before its forward is replaced."""
        self._counts.compiled_calls += runtime.status(self.model).compiled_calls


def _update(model: Model) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.9).add_(0.01)


def _load(model: Model, *, assign: bool = False) -> None:
    state = {name: 0.02 - each for name, each in model.state_dict().items()}
    model.load_state_dict(state, assign=assign)


def _replace(model: Model) -> None:
    last = model.layers[2]
    assert isinstance(last, nn.Linear)
    last.weight = nn.Parameter(last.weight.detach().flip(0))


CHANGES: dict[str, Callable[[Model], object]] = {
    "train": lambda model: model.train(),
    "eval": lambda model: model.eval(),
    "weights updated": _update,
    "state loaded": _load,
    "state assigned": lambda model: _load(model, assign=True),
    "weight replaced": _replace,
}


class Caller:
    """Calls models with random sizes, in inference and for gradients."""

    def __init__(
        self, pairs: Sequence[Pair], seed: int, recipes: Sequence[Path] = ()
    ) -> None:
        self.pairs = pairs
        self._recipes = recipes
        self._chance = random.Random(seed)
        self.wrong: list[str] = []

    def call(self) -> None:
        pair = self._chance.choice(self.pairs)
        value = self._chance.random()
        shape = (self._chance.randint(1, 24), 8)
        x = torch.full(shape, value, device=pair.device)
        if self._chance.random() < CHANGED:
            pair.change(self._chance, self._recipes)
        with pair.calling():
            gradient = self._chance.random() < 0.3
            answer, expected = pair.answers(x, gradient=gradient)
        # Kernels of a GPU add in another order.
        atol = 1e-5 if pair.device == "cpu" else 1e-3
        if not torch.allclose(answer, expected, rtol=1e-4, atol=atol):
            self.wrong.append(f"{tuple(x.shape)}: {answer} is not {expected}")


def _gradient(model: Model, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    weights = [x, *model.parameters()]
    grads = torch.autograd.grad((model(x) ** 2).sum(), weights)
    return torch.cat([grad.flatten() for grad in grads])


class Counts:
    """What the models tell through `on_event`, and what was done to them."""

    def __init__(self) -> None:
        self.compilations = self.compiled_calls = 0
        self.changes: Counter[str] = Counter()
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
    # A recipe that was written not to fit has this name.
    return any(text in why for text in ("planted", "SIGKILL"))


def write_recipes(folder: Path) -> list[Path]:
    """Those that fit compile with the faulty backend."""
    flaky = '[compile]\nbackend = "flaky"\n'
    texts = {
        "full.toml": f'strategy = "full"\n{flaky}',
        "dynamic.toml": f'strategy = "full"\n{flaky}dynamic = true\n',
        "core.toml": f'strategy = "core:layers"\n{flaky}',
        "eager.toml": 'strategy = "eager"\n',
        "planted-torch.toml": 'strategy = "full"\n[environment]\ntorch = "2.0.1"\n',
        "planted-damage.toml": 'strategy = "fu',
    }
    for name, text in texts.items():
        (folder / name).write_text(f"schema = 1\n{text}", encoding="utf-8")
    return [folder / name for name in texts]


def soak(calls: int, seed: int, device: str) -> Row:
    """Faulty compilers, without Inductor."""
    counts = Counts()
    backend = FlakyBackend(random.Random(seed), counts.faults)
    torch._dynamo.register_backend(backend, name="flaky")  # as recipes name it
    seeds = itertools.count(seed)
    with tempfile.TemporaryDirectory() as folder:
        recipes = write_recipes(Path(folder))

        def callers() -> list[Caller]:
            arguments = {"backend": backend, "deadline": DEADLINE_S}
            pairs = [Pair(counts, device, **arguments) for _ in range(MODELS)]
            return [Caller(pairs, next(seeds), recipes) for _ in range(THREADS)]

        return _soaked(callers, counts, calls)


def soak_inductor(calls: int, seed: int, device: str) -> Row:
    """Inductor, whose child is killed at work, and at other times."""
    counts, seeds = Counts(), itertools.count(seed)

    def callers() -> list[Caller]:
        pairs = [Pair(counts, device)]
        return [Caller(pairs, next(seeds)) for _ in range(2)]

    with _killing_children(random.Random(seed), counts.faults):
        return _soaked(callers, counts, calls)


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
    make_callers: Callable[[], list[Caller]], counts: Counts, calls: int
) -> Row:
    """Models live for one checkpoint; what they leave behind would add up."""
    begin, held, made = time.monotonic(), [], 0
    for _ in range(CHECKPOINTS):
        callers = make_callers()
        device = callers[0].pairs[0].device
        share = calls // CHECKPOINTS // len(callers)
        _call_all(callers, share)
        made += share * len(callers)
        counts.wrong += [wrong for caller in callers for wrong in caller.wrong]
        for pair in callers[0].pairs:
            pair.count_compiled()
        del callers, pair
        held.append(_holding(device))
        print(f"{len(held)} {held[-1]}", file=sys.stderr, flush=True)
    half = len(held) // 2
    halves = _extreme(max, held[:half]), _extreme(max, held[half:])
    return {
        "calls": made,
        **vars(counts),
        "held": [dataclasses.asdict(each) for each in halves],
        "grown": growth(held, counts.compilations),
        "seconds": time.monotonic() - begin,
    }


def _call_all(callers: list[Caller], times: int) -> None:
    """Each caller in a thread of its own, all at once."""

    def call(caller: Caller) -> None:
        for _ in range(times):
            caller.call()

    with ThreadPoolExecutor(len(callers)) as pool:
        list(pool.map(call, callers))


def _holding(device: str) -> Holding:
    gc.collect()
    me = psutil.Process()
    on_device = None
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        on_device = torch.cuda.memory_reserved()  # pools of recordings included
    return Holding(
        me.memory_info().rss,
        me.num_threads(),
        len(me.children(recursive=True)),
        me.num_fds(),
        on_device,
    )


def _extreme(choose: Callable[[Any], Any], held: list[Holding]) -> Holding:
    """The most, or the least, of each resource."""
    fields = [field.name for field in dataclasses.fields(Holding)]
    columns = ([getattr(one, name) for one in held] for name in fields)
    chosen: list[Any] = [None if None in each else choose(each) for each in columns]
    return Holding(*chosen)


SOAKS: dict[str, Callable[[int, int, str], Row]] = {
    "faulty compilers": soak,
    "Inductor": soak_inductor,
}
CALLS = {"faulty compilers": 100_000, "Inductor": 2_000}
QUICK = {"faulty compilers": 1_500, "Inductor": 40}


def measure(name: str, options: Options) -> Row:
    logging.getLogger("torchproof").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    if name == "Inductor":
        # Each compilation goes to the child, not to what an earlier one left.
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    calls = options.calls or (QUICK if options.quick else CALLS)[name]
    return SOAKS[name](calls, options.seed, options.device)


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        yield from (f"{name}: wrong: {wrong}" for wrong in row["wrong"][:5])
        yield from (f"{name}: more {what} in the second half" for what in row["grown"])


SURVEY = Survey(
    "soak",
    lambda options: list(SOAKS),
    measure,
    failures,
    limit_s=4 * 3600,
    devices=("cpu", "cuda"),
    flags={
        "--calls": {"type": int, "help": "of each row"},
        "--seed": {"type": int, "default": 0},
    },
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
