"""Operations of a step, the peaks of devices, and the share of the peak it uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from bench_runs import bench, row
from forked_workers import measured
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from torchproof.measure import device_peaks
from torchproof.measure.device_peaks import DEVICES, TYPES, VARIABLE, peaks_of
from torchproof.measure.operation_count import _is_heavy, count
from torchproof.measure.replies import Operations
from torchproof.measure.specs import EAGER, StrategySpec
from torchproof.records.run import UserError
from torchproof.report import render

ROWS, WIDE, NARROW = 32, 64, 16
FIRST = 2 * ROWS * WIDE * WIDE  # operations of the forward of the first layer
SECOND = 2 * ROWS * WIDE * NARROW


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, NARROW))


def of(run: Callable[[], object]) -> Operations:
    return count(run, 1)


# -- counting --------------------------------------------------------------------------


def test_a_training_step_has_no_gradient_of_its_input() -> None:
    model, x = net(), torch.randn(ROWS, WIDE)
    counted = of(lambda: model(x).mean().backward())
    assert counted.by_type == {"float32": 3 * (FIRST + SECOND) - FIRST}
    assert counted.devices == ("cpu",) and counted.not_counted == ()


@pytest.mark.parametrize("kind", ["conv", "attention", "inference", "no_grad"])
def test_it_agrees_with_the_counter_of_torch(kind: str) -> None:
    x = torch.randn(2, 4, 16, 16)
    conv, linear = nn.Conv2d(4, 8, 3), nn.Linear(16, 8)

    def attend() -> object:
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    runs = {
        "conv": lambda: conv(x).mean().backward(),
        "attention": attend,
        "inference": torch.inference_mode()(lambda: linear(x)),
        "no_grad": torch.no_grad()(lambda: linear(x)),
    }
    with FlopCounterMode(display=False) as counter:
        runs[kind]()
    assert of(runs[kind]).by_type == {"float32": counter.get_total_flops()}
    assert counter.get_total_flops()


def test_fused_attention_on_the_cpu_counts_as_that_on_a_gpu() -> None:
    x = torch.randn(2, 4, 16, 8)
    attend = nn.functional.scaled_dot_product_attention
    assert of(lambda: attend(x, x, x)).by_type == {"float32": 2 * 2 * 8 * 16 * 16 * 8}


def test_products_of_groups_count_as_the_products_they_are() -> None:
    experts, rows, wide, out = 4, 32, 16, 8
    x = torch.randn(rows, wide, dtype=torch.bfloat16)
    weights = torch.randn(experts, wide, out, dtype=torch.bfloat16)
    ends = torch.tensor([8, 16, 24, 32], dtype=torch.int32)
    grouped = nn.functional.grouped_mm
    both = of(lambda: grouped(x, weights, offs=ends))
    assert both.by_type == {"bfloat16": 2 * rows * wide * out}
    assert both.not_counted == ()
    for each in (x, weights):
        each.requires_grad_()
    step = of(lambda: grouped(x, weights, offs=ends).square().mean().backward())
    assert step.by_type == {"bfloat16": 3 * 2 * rows * wide * out}


def test_nothing_is_counted_in_a_step_without_products() -> None:
    x = torch.randn(8)
    integers = torch.ones(4, 4, dtype=torch.int64)
    counted = of(lambda: (x.relu().sum(), integers @ integers))
    assert counted == Operations()


def test_what_has_no_formula_is_named() -> None:
    @torch.library.custom_op("torchproof_tests::squared", mutates_args=())
    def squared(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    x = torch.randn(8, 8)
    assert of(lambda: squared(x) + x).not_counted == ("torchproof_tests::squared",)


HEAVY = ("aten::mkldnn_rnn_layer", "aten::_int_mm", "flash_attn::_flash_attn_forward")
HEAVY += ("aten::_transformer_encoder_layer_fwd",)
LIGHT = ("aten::upsample_bilinear2d", "aten::_convert_indices_from_coo_to_csr")
LIGHT += ("prims::convert_element_type", "_c10d_functional::all_reduce")


def test_which_operations_are_costly() -> None:
    named = [SimpleNamespace(name=lambda n=name: n) for name in HEAVY + LIGHT]
    costly = [_is_heavy(each) for each in named]
    assert costly == [True] * len(HEAVY) + [False] * len(LIGHT)


# -- peaks -----------------------------------------------------------------------------


BFLOAT16 = {
    "NVIDIA H200": 989.4,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA GeForce RTX 4090": 165.2,
    "Tesla T4": None,
}
UNKNOWN = (None, "", "NVIDIA GeForce RTX 4090 Laptop GPU", "AMD Instinct MI300X")
UNKNOWN += ("NVIDIA H100 80GB HBM3 MIG 1g.10gb",)


def test_the_peaks_of_devices() -> None:
    assert {name: (peaks_of(name) or {}).get("bfloat16") for name in BFLOAT16} == (
        BFLOAT16
    )
    assert [peaks_of(name) for name in UNKNOWN] == [None] * len(UNKNOWN)
    for pattern, peaks in DEVICES:
        assert set(peaks) <= set(TYPES)
        types = ("float32", "tf32", "float16", "float8")
        speeds = [peaks[name] for name in types if name in peaks]
        assert speeds == sorted(speeds), pattern


def test_the_user_states_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "bfloat16=100, tf32=50")
    assert peaks_of("NVIDIA H200") == {"bfloat16": 100.0, "tf32": 50.0}
    for wrong in ("fast", "-1", "bf16=100", "float32=", "nan", "1,float32=x"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(UserError, match="as in 989 or"):
            peaks_of(None)


# -- the share -------------------------------------------------------------------------


def test_types_with_different_peaks_share_the_time() -> None:
    on_h200 = Operations({"bfloat16": 989.4e9, "tf32": 494.7e9}, devices=("cuda:0",))
    mfu, flops = device_peaks.utilisation(on_h200, "NVIDIA H200", 4.0)
    assert mfu == pytest.approx(0.5)  # 1 ms each at the peak
    assert flops["peak_tflops"] == {"bfloat16": 989.4, "tf32": 494.7}
    assert flops["per_second"] == pytest.approx((989.4e9 + 494.7e9) / 4e-3)
    two = Operations({"bfloat16": 989.4e9}, devices=("cuda:0", "cuda:1"))
    assert device_peaks.utilisation(two, "NVIDIA H200", 1.0)[0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("counted", "gpu", "why"),
    [
        (Operations({"float32": 1e9}, ("cpu",)), None, "peak of the device in float32"),
        (Operations({"float32": 1e9}, ("cpu",)), "NVIDIA H200", "peak of the device"),
        (Operations({"bfloat16": 1e9}, ("cuda:0",)), "Tesla T4", "in bfloat16"),
        (Operations({"bfloat16": 1e15}, ("cuda:0",)), "NVIDIA H200", "than the peak"),
        (Operations(), "NVIDIA H200", "no product of matrices"),
        (Operations(not_counted=("a::b",)), "NVIDIA H200", "no formula for a::b"),
        (Operations(why="counting failed: x"), "NVIDIA H200", "counting failed"),
    ],
)
def test_an_unknown_share_says_why(
    counted: Operations, gpu: str | None, why: str
) -> None:
    mfu, flops = device_peaks.utilisation(counted, gpu, 1.0)
    assert mfu is None and why in flops["why"]


# -- measured and shown ----------------------------------------------------------------

TARGET = """
import torch

def linear():
    return torch.nn.Linear(64, 16), [(torch.randn(32, 64),)]
"""


def test_a_stated_peak_gives_a_share_on_any_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    (tmp_path / "target.py").write_text(TARGET)
    target = f"{tmp_path / 'target.py'}:linear"
    [found] = measured(target, (StrategySpec(EAGER),), train=True).rows
    assert found.flops and found.flops["per_step"] == 2 * SECOND
    assert found.median_ms is not None and found.mfu is not None
    assert found.mfu == pytest.approx(2 * SECOND / 1e12 / (found.median_ms / 1e3))


FLOPS = {
    "per_step": 1.2e12,
    "per_second": 4e14,
    "peak_tflops": {"bfloat16": 989.4},
    "not_counted": [],
}


def test_reports_have_a_column_of_utilisation_where_it_is_known() -> None:
    rows = [
        row("eager", 1.0, mfu=0.2, flops=FLOPS),
        row("full", 0.5, mfu=0.41, flops=FLOPS | {"not_counted": ["a::b"]}),
    ]
    text = render(bench(rows), "text")
    assert "20%" in text and ">41%" in text and "without a::b" in text
    unknown = render(bench([row("eager", 1.0), row("full", 0.5)]), "text")
    assert "MFU" not in unknown
