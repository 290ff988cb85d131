"""FP8 weights: scales, the product, the error of the logits, and compiled code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from torchproof.measure import operation_count
from torchproof.records import UserError
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.target import parse
from torchproof.targets.workloads import fp8_linear, gpt
from torchproof.targets.workloads.fp8_linear import FP8, Fp8Linear

SPEC = gpt.Size(layers=3, dim=64, heads=2, vocabulary=96)
IDS = torch.arange(40).view(2, 20)
# Those of activations; the scaled product of a GPU gives no other.
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
GPU = pytest.mark.gpu
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    ours, theirs = ours.double(), theirs.double()
    return float((ours - theirs).norm() / theirs.norm())


def varied(spec: gpt.Size, *, fp8: bool, device: str = "cpu") -> gpt.GPT:
    """A decoder whose weight rows differ in size, so that their scales do."""
    torch.manual_seed(0)
    with torch.device(device):
        model = gpt.GPT(spec, dtype=DTYPES[device]).requires_grad_(False)
        for module in model.blocks.modules():
            if isinstance(module, nn.Linear):
                sizes = torch.logspace(-1, 0, module.out_features)
                module.weight.mul_(sizes[torch.randperm(len(sizes)), None])
        if fp8:
            fp8_linear.with_fp8_weights(model.blocks)
    return model


def layers_of(model: gpt.GPT) -> list[Fp8Linear]:
    return [each for each in model.modules() if isinstance(each, Fp8Linear)]


# -- scales and product ----------------------------------------------------------------


def test_each_row_uses_the_whole_range_of_fp8() -> None:
    rows = torch.randn(5, 32) * torch.logspace(-6, 6, 5)[:, None]
    numbers, scales = fp8_linear.quantised(rows)
    assert numbers.dtype is FP8 and scales.dtype is torch.float32
    assert (numbers.float().abs().amax(-1) == torch.finfo(FP8).max).all()
    wide = numbers.float() * scales[:, None]
    assert ((wide - rows).norm(dim=-1) < 0.04 * rows.norm(dim=-1)).all()
    assert (fp8_linear.quantised(torch.zeros(2, 16))[0].float() == 0).all()


@pytest.mark.parametrize(
    ("device", "rows", "dtype"),
    [
        *(("cpu", 7, each) for each in (torch.float32, torch.bfloat16, torch.float64)),
        *(
            pytest.param("cuda", each, torch.bfloat16, marks=GPU)
            for each in (1, 7, 512)
        ),
    ],
)
def test_product_is_that_of_the_dequantised_numbers(
    device: str, rows: int, dtype: torch.dtype
) -> None:
    width, limit = 32, 4 * torch.finfo(dtype).eps + 1e-6
    if device == "cuda":
        width, limit = 256, 0.01
        if missing := fp8_linear.missing_product(torch.device("cuda", 0)):
            pytest.skip(missing)
    torch.manual_seed(0)
    sizes = torch.logspace(-3, 3, 512, device=device)[:, None]
    inputs = torch.randn(rows, width, device=device) * sizes[:rows]
    inputs, input_scales = fp8_linear.quantised(inputs)
    weight = torch.randn(512, width, device=device) * sizes
    weight, weight_scales = fp8_linear.quantised(weight)
    product = fp8_linear.fp8_product(
        inputs, input_scales, weight, weight_scales, dtype=dtype
    )
    wide = inputs.double() * input_scales[:, None]
    exact = wide @ (weight.double() * weight_scales[:, None]).t()
    assert product.dtype is dtype
    for ours, theirs in zip(product.double(), exact, strict=True):
        assert relative_error(ours, theirs) < limit


def test_compiler_assumes_the_right_form_of_the_product() -> None:
    rows, row_scales = fp8_linear.quantised(torch.randn(4, 16))
    torch.library.opcheck(
        fp8_linear.fp8_product,
        (rows, row_scales, rows, row_scales),
        {"dtype": torch.float32},
        test_utils="test_faketensor",
    )


def test_operations_of_a_product_are_counted_as_fp8() -> None:
    layer = Fp8Linear(nn.Linear(32, 48)).requires_grad_(False)
    counted = operation_count.count(lambda: layer(torch.randn(2, 5, 32)), 1)
    assert counted.by_type == {"float8": 2 * 10 * 32 * 48}
    assert counted.not_counted == ()


# -- logits ----------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_logits_are_within_the_bound_and_other_scales_are_not(device: str) -> None:
    ids = IDS.to(device)
    right = varied(SPEC, fp8=False, device=device)(ids)
    model = varied(SPEC, fp8=True, device=device)
    bound = fp8_linear.parity_bound(SPEC.layers)
    assert relative_error(model(ids), right) < bound
    for layer in layers_of(model):
        layer.weight_scales.copy_(layer.weight_scales.roll(1))
    assert relative_error(model(ids), right) > bound


# -- the workload ----------------------------------------------------------------------


def test_only_embedding_head_norms_and_biases_are_not_fp8() -> None:
    model, _ = gpt.make(fp8=True)
    whole, _ = gpt.make()
    assert len(layers_of(model)) == 4 * len(model.blocks)
    dtypes = {name: each.dtype for name, each in model.named_parameters()}
    for name, parameter in whole.named_parameters():
        is_fp8 = parameter.dim() == 2 and name.startswith("blocks.")
        assert (dtypes[name] is FP8) is is_fp8
        if not is_fp8:  # the same random numbers
            assert torch.equal(model.get_parameter(name), parameter)


def test_70b_takes_a_byte_for_almost_every_weight() -> None:
    model, _ = gpt.make("70b", device="meta", fp8=True)
    tensors = [*model.parameters(), *model.buffers()]
    count = sum(each.numel() for each in model.parameters())
    assert sum(each.numel() * each.itemsize for each in tensors) < 1.04 * count
    assert count > 70e9


@pytest.mark.parametrize(
    ("flag", "options"),
    [("--train", {"train": True}), ("--dtype", {"dtype": "bfloat16"})],
)
def test_fp8_is_neither_trained_nor_converted(
    flag: str, options: dict[str, Any]
) -> None:
    for workload in ("workload:gpt", "workload:gpt-fp8"):
        job = Job(parse(workload), device="cpu", size="tiny", **options)
        if workload == "workload:gpt":
            assert calls.resolved(job) == job
        else:
            with pytest.raises(UserError, match=flag):
                calls.resolved(job)


def test_one_graph_gives_the_logits_of_eager_for_all_shapes() -> None:
    model = varied(gpt.Size(layers=1, dim=32, heads=2, vocabulary=512), fp8=True)
    _, calls = gpt.make(fp8=True)
    compiled_graphs = CompileCounter()
    torch.compiler.reset()
    compiled = torch.compile(model, backend=compiled_graphs, fullgraph=True)
    for call in [calls[1], calls[0], calls[-1]]:  # calls[1] has batch 1
        torch.testing.assert_close(compiled(*call), model(*call))
    assert compiled_graphs.frame_count == 1


@pytest.mark.gpu
@pytest.mark.parametrize("regional", [False, True])
def test_compiled_code_gives_the_logits_of_eager(regional: bool) -> None:
    model = varied(SPEC, fp8=True, device="cuda")
    right = model(IDS.cuda())
    torch.compiler.reset()
    if regional:
        for block in model.blocks:
            block.compile(fullgraph=True)
    else:
        model.compile(fullgraph=True)
    # Other roundings before an input is quantised can move it to the next FP8 number.
    assert relative_error(model(IDS.cuda()), right) < 0.03
