"""`torch.compile` inside or around DistributedDataParallel: graphs, overlap, speed.

Two ranks (gloo, CPU) train the same model in each order, with each setting of
`torch._dynamo.config.optimize_ddp`. All arms of a launch run in the same processes, in
turn, a few steps each; a launch gives one ratio per pair of arms, and the interval is
one over launches. Counts do not depend on how busy the machine is; times do.

    python benchmarks/ddp_order.py [--launches 5] [--rounds 12] [-o FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.result_files import write

HERE = Path(__file__).resolve()
RESULT = HERE.parent / "results" / "ddp-order-cpu.json"
RANKS = 2
BLOCKS, WIDTH, BATCH, BUCKET_MB = 8, 256, 32, 4
ARMS = ("eager", "inside", "around", "blocks")
SETTINGS = ("ddp_optimizer", "no_optimization", "python_reducer")
LIMIT_S = 400  # of a launch
STEPS = 3  # of an arm before the next one has its turn
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(x)))
        return x + out


class Model(torch.nn.Module):
    """Not a `Sequential`: Dynamo starts no frame in torch's own containers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


# -- one rank --------------------------------------------------------------------------


class Arm:
    """A model in one order, with what its compiler and its buckets did."""

    def __init__(self, order: str) -> None:
        self.graphs = 0
        self.sent: list[float] = []  # when each bucket of the last step was ready
        torch.manual_seed(0)
        model: Any = Model()
        if order == "inside":
            model = torch.compile(model, backend=self._compile)
        if order == "blocks":
            for block in model.blocks:
                block.compile(backend=self._compile)
        self.ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
        around = order == "around"
        self.call: Callable[..., torch.Tensor] = (
            torch.compile(self.ddp, backend=self._compile) if around else self.ddp
        )
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), 0.001)

    def _compile(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return torch._dynamo.lookup_backend("inductor")(graph, inputs)

    def step(self, x: torch.Tensor) -> float:
        """A training step; returns the seconds of its backward."""
        loss = self.call(x).square().mean()
        begin = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - begin
        self.optimizer.step()
        self.optimizer.zero_grad()
        return seconds


def compiled_autograd(setting: str) -> Any:
    """The Python reducer is only traced by compiled autograd."""
    is_on = setting == "python_reducer"
    return torch._dynamo.config.patch(optimize_ddp=setting, compiled_autograd=is_on)


def rank(setting: str, rounds: int, folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    with compiled_autograd(setting):
        arms: dict[str, Arm] = {}
        facts: dict[str, dict[str, Any]] = {}
        for name in ARMS:
            torch._dynamo.utils.counters.clear()
            try:
                arm = Arm(name)
                for _ in range(4):  # DDP arranges its buckets anew after the first
                    arm.step(x)
            except Exception as error:
                facts[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
                continue
            breaks = torch._dynamo.utils.counters["graph_break"]
            reasons = [text.partition("\n")[0] for text in breaks]
            facts[name] = {"graphs": arm.graphs, "graph_breaks": reasons}
            arms[name] = arm
        times: dict[str, list[float]] = {name: [] for name in arms}
        for turn in range(rounds):
            order = list(arms) if turn % 2 == 0 else list(arms)[::-1]
            for name in order:
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(STEPS):
                    arms[name].step(x)
                times[name].append((time.perf_counter() - begin) / STEPS * 1e3)
        for name, arm in arms.items():
            facts[name]["round_ms"] = times[name]
            facts[name] |= overlap(arm, x) if setting != "python_reducer" else {}
    path = folder / f"{dist.get_rank()}.json"
    path.write_text(json.dumps(facts), encoding="utf-8")
    dist.destroy_process_group()


def overlap(arm: Arm, x: torch.Tensor) -> dict[str, Any]:
    """How many buckets are sent in a backward, and when the first of them is."""

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads the types
        state.sent.append(time.perf_counter())
        buffer = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(buffer, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    arm.ddp.register_comm_hook(arm, hook)
    shares, buckets = [], 0
    for _ in range(9):
        arm.sent.clear()
        loss = arm.call(x).square().mean()
        begin = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - begin
        arm.optimizer.zero_grad()
        buckets = len(arm.sent)
        shares.append((arm.sent[0] - begin) / seconds)
    return {"buckets": buckets, "first_bucket_after": statistics.median(shares)}


# -- all launches ----------------------------------------------------------------------


def launch(setting: str, rounds: int, caches: str) -> dict[str, Any]:
    """The facts of rank 0, with the times of the slower rank in each round."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--standalone", f"--nproc-per-node={RANKS}"]
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(HERE)]
        command += ["--rank", setting, str(rounds), folder]
        environment = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": caches}
        with subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                _, told = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return {"error": f"no answer within {LIMIT_S} s"}
        if process.returncode:
            return {"error": re.findall(r"^.*Error: .*$", told, re.MULTILINE)[:1]}
        first, *others = (
            json.loads(Path(folder, f"{number}.json").read_text(encoding="utf-8"))
            for number in range(RANKS)
        )
    for name, facts in first.items():
        if "round_ms" in facts:
            every = zip(
                facts["round_ms"], *(o[name]["round_ms"] for o in others), strict=True
            )
            facts["round_ms"] = [round(max(each), 3) for each in every]
    return dict(first)


def ratio(launches: list[dict[str, Any]], slow: str, fast: str) -> dict[str, Any]:
    """The step time of one arm over that of another, with an interval over launches."""
    values = [
        statistics.median(
            a / b
            for a, b in zip(each[slow]["round_ms"], each[fast]["round_ms"], strict=True)
        )
        for each in launches
        if "round_ms" in each.get(slow, {}) and "round_ms" in each.get(fast, {})
    ]
    result: dict[str, Any] = {"of": f"{slow} / {fast}", "launches": values}
    if len(values) >= 3:
        half = T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
        middle = statistics.mean(values)
        low, high = middle - half, middle + half
        result |= {"mean": middle, "low": low, "high": high}
        result["significant"] = not low <= 1.0 <= high
    return result


def summaries(setting: str, launches: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    good = [each for each in launches if "error" not in each]
    for name in ARMS:
        facts = [each[name] for each in good]
        fields = ("graphs", "graph_breaks", "buckets", "first_bucket_after", "error")
        yield {"setting": setting, "order": name} | {
            field: [f[field] for f in facts if field in f] for field in fields
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--launches", type=int, default=5, choices=range(1, 9))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("-o", type=Path, default=RESULT)
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        setting, rounds, folder = options.rank
        rank(setting, int(rounds), Path(folder))
        return
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.settings}
    with tempfile.TemporaryDirectory() as caches:
        for index in range(options.launches):
            for setting in options.settings:
                if index and setting == "python_reducer":  # experimental: once
                    continue
                runs[setting].append(launch(setting, options.rounds, caches))
                print(setting, json.dumps(runs[setting][-1]), file=sys.stderr)
                write(options.o, document(options, runs))


def document(
    options: argparse.Namespace, runs: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    pairs = (("inside", "around"), ("eager", "around"), ("blocks", "around"))
    return {
        "command": f"python benchmarks/ddp_order.py --launches {options.launches}"
        f" --rounds {options.rounds} --settings {' '.join(options.settings)}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"cpu, {platform.machine()}, {os.cpu_count()} cores, {RANKS} ranks,"
        " gloo, one thread each",
        "load_average": os.getloadavg()[0],
        "model": {
            "blocks": BLOCKS,
            "width": WIDTH,
            "batch": BATCH,
            "bucket_cap_mb": BUCKET_MB,
        },
        "orders": {
            "inside": "DistributedDataParallel(torch.compile(model))",
            "around": "torch.compile(DistributedDataParallel(model))",
            "blocks": "each block.compile(), then DistributedDataParallel(model)",
        },
        "counts": [row for name in runs for row in summaries(name, runs[name])],
        "ratios": {name: [ratio(runs[name], *pair) for pair in pairs] for name in runs},
        "launches": runs,
    }


if __name__ == "__main__":
    main()
