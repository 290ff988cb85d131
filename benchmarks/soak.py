"""Thousands of calls with random sizes, faults and changes, from several threads.

    python benchmarks/soak.py [--calls 100000] [--seed 0] [--write]

Four threads call three models whose compilers sometimes raise, sometimes never return.
Between calls the models are switched between train and eval, get other weights, are
retried, and are compiled anew by other recipes, of which two do not fit. A stretch with
Inductor follows, whose child is killed at random. Every answer and every gradient is
compared with those of a twin in eager that goes through the same changes. Exit code 1
when one is wrong, or when the second half of the calls needs more memory, threads,
processes or files than the first.
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

from torchproof.runtime import compile_job
from torchproof.runtime import production as runtime

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from benchmarks.result_files import commit_of  # noqa: E402

THREADS, MODELS = 4, 3
DEADLINE_S = 1.0
CHANGED = 0.03  # of the calls: a change comes before them
# Torch keeps a record of each compilation for ever: the source of its graphs, guards
# that failed, a cache entry without code. Measured with models of this class that are
# compiled, called and deleted one after the other: 20 KiB of each compilation.
KEPT_BYTES, SLACK_BYTES = 32 << 10, 16 << 20


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
    compiled_calls: int
    changes: dict[str, int]
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

    def __init__(self, counts: Counts, **arguments: Any) -> None:
        self.model = Model()
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
        x = torch.full((self._chance.randint(1, 24), 8), self._chance.random())
        if self._chance.random() < CHANGED:
            pair.change(self._chance, self._recipes)
        with pair.calling():
            if self._chance.random() < 0.3:
                answer, expected = _gradient(pair.model, x), _gradient(pair.twin, x)
            else:
                with torch.no_grad():
                    answer, expected = pair.model(x), pair.twin(x)
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
    texts = {
        "full.toml": 'schema = 1\nstrategy = "full"\n[compile]\nbackend = "flaky"\n',
        "dynamic.toml": 'schema = 1\nstrategy = "full"\n[compile]\nbackend = "flaky"\n'
        "dynamic = true\n",
        "core.toml": 'schema = 1\nstrategy = "core:layers"\n[compile]\n'
        'backend = "flaky"\n',
        "eager.toml": 'schema = 1\nstrategy = "eager"\n',
        "planted-other-torch.toml": 'schema = 1\nstrategy = "full"\n[environment]\n'
        'torch = "2.0.1"\n',
        "planted-damage.toml": 'schema = 1\nstrategy = "fu',
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def soak(calls: int, seed: int, checkpoints: int) -> Soak:
    """Faulty compilers, without Inductor."""
    counts = Counts()
    backend = FlakyBackend(random.Random(seed), counts.faults)
    torch._dynamo.register_backend(backend, name="flaky")  # as recipes name it
    seeds = itertools.count(seed)
    with tempfile.TemporaryDirectory() as folder:
        recipes = write_recipes(Path(folder))

        def callers() -> list[Caller]:
            told = {"backend": backend, "deadline": DEADLINE_S}
            pairs = [Pair(counts, **told) for _ in range(MODELS)]
            return [Caller(pairs, next(seeds), recipes) for _ in range(THREADS)]

        return _soaked(callers, counts, calls=calls, checkpoints=checkpoints)


def soak_inductor(calls: int, seed: int, checkpoints: int) -> Soak:
    """Inductor, whose child is killed at work, and at other times."""
    counts, seeds = Counts(), itertools.count(seed)

    def callers() -> list[Caller]:
        pairs = [Pair(counts)]
        return [Caller(pairs, next(seeds)) for _ in range(2)]

    with _killing_children(random.Random(seed), counts.faults):
        return _soaked(callers, counts, calls=calls, checkpoints=checkpoints)


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
        for pair in callers[0].pairs:
            pair.count_compiled()
        del callers
        held.append(_holding())
        print(f"{number + 1}/{checkpoints} {held[-1]}", file=sys.stderr, flush=True)
    return Soak(
        calls=made,
        compiled_calls=counts.compiled_calls,
        changes=dict(counts.changes),
        wrong=tuple(counts.wrong),
        compilations=counts.compilations,
        faults=dict(counts.faults),
        fallbacks=dict(counts.fallbacks),
        held=(_most(held[: checkpoints // 2]), _most(held[checkpoints // 2 :])),
        seconds=time.monotonic() - begin,
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
        me.num_threads(),
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
        f" {done.compiled_calls} compiled, {done.compilations} compilations",
        f"  changes {done.changes}",
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
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--inductor-calls", type=int, default=2_000)
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()
    logging.getLogger("torchproof").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    commit = commit_of(HERE.parent)
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
        kept: dict[str, Any] = {
            "commit": commit,
            "torch": torch.__version__,
            "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        }
        kept["soaks"] = {name: dataclasses.asdict(one) for name, one in found.items()}
        path = HERE / "results" / "soak-cpu.json"
        path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    return 0 if all(one.ok for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
