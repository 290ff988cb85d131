"""Ranks on a GPU: what one of them compiles alone, NCCL, and GPUs that are missing.

Two ranks share the GPU over gloo, as NCCL needs a GPU for each.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from commands import torchproof

pytestmark = pytest.mark.gpu

TRAINING = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.cuda.set_device(0)
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


step = torch.compile(DistributedDataParallel(Net().cuda()))
for number in range(6):
    short = number == 4 and dist.get_rank() == 1 and LAST_BATCH_IS_SHORT
    step(torch.randn(5 if short else 8, 64, device="cuda")).sum().backward()
dist.destroy_process_group()
"""

FACTORY = """
import torch


def make():
    return torch.nn.Linear(8, 8), [(torch.randn(4, 8),)] * 3
"""


def checked(folder: Path, *, short: bool) -> dict[str, object]:
    program = folder / "train.py"
    program.write_text(TRAINING.replace("LAST_BATCH_IS_SHORT", str(short)))
    flags = ("--ranks", "2", "--format", "json", "-q")
    done = torchproof("check", str(program), *flags, cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_rank_that_recompiles_alone_is_found(tmp_path: Path) -> None:
    run = checked(tmp_path, short=True)
    [finding] = [f for f in run["findings"] if f["code"] == "RK105"]  # type: ignore[attr-defined]
    assert (finding["ranks"], finding["step"]) == ([1], 4)


def test_ranks_that_compile_alike_are_no_finding(tmp_path: Path) -> None:
    run = checked(tmp_path, short=False)
    codes = {finding["code"] for finding in run["findings"]}  # type: ignore[attr-defined]
    assert not {code for code in codes if code.startswith("RK") and code != "RK109"}


def factory(folder: Path) -> str:
    (folder / "net.py").write_text(FACTORY)
    return "net.py:make"


@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
def test_a_factory_runs_under_nccl(wrap: str, tmp_path: Path) -> None:
    flags = ("--ranks", "1", "--wrap", wrap, "--device", "cuda", "--train")
    line = (factory(tmp_path), *flags, "--format", "json", "-q")
    done = torchproof("check", *line, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    [rank] = json.loads(done.stdout)["ranks"]["ranks"]
    assert rank["outcome"] == "finished"


def test_more_ranks_than_gpus_are_refused_in_one_line(tmp_path: Path) -> None:
    count = torch.cuda.device_count() + 1
    flags = ("--ranks", str(count), "--wrap", "ddp", "--device", "cuda", "-q")
    done = torchproof("check", factory(tmp_path), *flags, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "GPU" in done.stderr
