"""The program of `observed_rank`: trains a small model under DDP, and times itself.

torchrun --nproc-per-node 2 benchmarks/rank_training.py FOLDER STEPS
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(WIDTH, WIDTH) for _ in range(8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x


def main(folder: Path, steps: int) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(Layers())
    step = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    marks = []
    for _ in range(steps):
        marks.append(time.process_time())
        step(torch.randn(64, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    now_s = time.process_time()
    seconds = {
        "wall_s": time.perf_counter() - wall_s,
        "cpu_s": now_s - cpu_s,
        "first_step_cpu_s": marks[1] - marks[0],
        "other_steps_cpu_s": now_s - marks[1],
    }
    path = folder / f"{os.environ['RANK']}.json"
    path.write_text(json.dumps(seconds), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
