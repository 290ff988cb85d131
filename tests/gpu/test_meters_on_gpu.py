"""The share of a GPU's peak that a step uses."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from torchproof.measure import operation_count
from torchproof.measure.device_peaks import peaks_of

pytestmark = pytest.mark.gpu

_SIZE = 4096
SOURCE = f"""\
import torch

def make():
    weight = torch.randn({_SIZE}, {_SIZE}, device="cuda", dtype=torch.bfloat16)
    def step(x):
        for _ in range(8):
            x = x @ weight
        return x
    return step, [(torch.randn_like(weight),)]
"""


def test_bench_reports_utilisation(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(textwrap.dedent(SOURCE))
    command = [sys.executable, "-m", "torchproof", "bench", "model.py:make"]
    flags = ["--strategies", "full", "--repeats", "1", "--format", "json"]
    done = subprocess.run(
        [*command, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = json.loads(done.stdout)
    for row in run["measurements"]:
        assert row["flops"]["by_type"] == {"bfloat16": 8 * 2 * _SIZE**3}
        assert row["flops"]["not_counted"] == []
        if peaks_of(run["environment"]["gpu"]):
            assert 0.1 < row["mfu"] < 1
        else:
            assert row["mfu"] is None and "is not known" in row["flops"]["why"]


def test_the_type_follows_the_precision_of_float32() -> None:
    x = torch.randn(64, 64, device="cuda")
    convolution = torch.nn.Conv2d(1, 1, 3, device="cuda")

    def types() -> list[str]:
        return [*operation_count.count(lambda: x @ x, 1).by_type]

    before = torch.get_float32_matmul_precision()
    able = torch.cuda.get_device_capability()[0] >= 8
    try:
        torch.set_float32_matmul_precision("highest")
        assert types() == ["float32"]
        torch.set_float32_matmul_precision("high")
        assert types() == (["tf32"] if able else ["float32"])
    finally:
        torch.set_float32_matmul_precision(before)
    image = torch.randn(1, 1, 8, 8, device="cuda")
    counted = operation_count.count(lambda: convolution(image), 1)
    assert [*counted.by_type] == (["tf32"] if able else ["float32"])


def test_the_backward_is_counted_on_the_gpu() -> None:
    layer = torch.nn.Linear(64, 16, device="cuda")
    x = torch.randn(32, 64, device="cuda")
    counted = operation_count.count(lambda: layer(x).mean().backward(), 1)
    assert sum(counted.by_type.values()) == 2 * 2 * 32 * 64 * 16
    assert counted.devices == ("cuda:0",)
