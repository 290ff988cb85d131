"""The share of a GPU's peak that a step uses, and the energy that the board counts."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from torchproof.measure import energy, operation_count
from torchproof.measure.device_peaks import peaks_of
from torchproof.measure.replies import Energy

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


def test_bench_reports_utilisation_and_energy(tmp_path: Path) -> None:
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
        assert_plausible(Energy.from_json(row["energy"]))


def assert_plausible(found: Energy) -> None:
    if found.why:
        pytest.skip(found.why)
    assert found.watts and found.joules_per_step and found.seconds and found.steps
    assert 15 < found.watts < 1.2 * (found.limit_watts or 2000)
    assert found.seconds > 0.9 and found.boards == 1
    total = found.watts * found.seconds
    assert found.joules_per_step == pytest.approx(total / found.steps)


def products(count: int) -> Callable[[], None]:
    x = torch.randn(_SIZE, _SIZE, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        for _ in range(count):
            x @ x
        torch.cuda.synchronize()

    return run


def test_more_work_takes_more_energy() -> None:
    short, long = (energy.measure(products(count), 1) for count in (4, 16))
    for found in (short, long):
        assert_plausible(found)
    assert short.joules_per_step and long.joules_per_step
    assert 2 < long.joules_per_step / short.joules_per_step < 8


def test_a_busy_board_draws_more_than_an_idle_one() -> None:
    run = products(8)  # holds memory of the GPU while it idles
    busy = energy.measure(run, 1)
    assert_plausible(busy)
    time.sleep(2)
    idle = energy.measure(lambda: time.sleep(0.02), 1)
    assert busy.watts and idle.watts and idle.watts < 0.8 * busy.watts


def test_sampled_power_agrees_with_the_counter() -> None:
    run = products(8)
    counted = energy.measure(run, 1)
    if counted.method != "counter":
        pytest.skip("the board has no energy counter")
    method, joules, passes, _ = energy._by_samples(run, energy.used_boards(), 1.0)
    assert method == "samples"
    assert joules / passes == pytest.approx(counted.joules_per_step, rel=0.3)


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
