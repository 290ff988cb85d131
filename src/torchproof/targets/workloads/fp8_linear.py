"""Linear layers with FP8 weights: one scale per output row, and one per input row.

`quantised` divides each row by its scale, so that its largest number becomes the
largest one of FP8. Weights are quantised once, inputs in every call. The product is one
operator, which compiled code calls as it is: torch's scaled matrix product where the
device has it, otherwise the same sum of products in the dtype of the result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

Shape = Sequence[int]
FP8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(FP8).max
_SMALLEST_SCALE = 1e-12  # for a row of zeros


def quantised(rows: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 numbers (rows, columns) and scales (rows), whose product is about `rows`."""
    wide = rows.float()
    scales = (wide.abs().amax(-1) / _LARGEST).clamp(min=_SMALLEST_SCALE)
    return (wide / scales[:, None]).to(FP8), scales


@torch.library.custom_op("workload_gpt::fp8_product", mutates_args=())
def fp8_product(
    rows: Tensor,
    row_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """(rows * row_scales) @ (weight * weight_scales).T in `dtype`.

    It is an operator, because Dynamo cannot trace `F.scaled_mm` before torch 2.13, and
    because torch's own one compares the number of rows with 1, which a graph for any
    batch size cannot answer.
    """
    # A reference in float64 has scales in float64.
    if row_scales.dtype is torch.float32 and missing_product(rows.device) is None:
        return _scaled_product(rows, row_scales, weight, weight_scales, dtype=dtype)
    # bfloat16 and wider types hold every FP8 number, so only the sum is rounded.
    products = rows.to(dtype) @ weight.to(dtype).t()
    return (products * row_scales[:, None] * weight_scales).to(dtype)


@fp8_product.register_fake
def _(
    rows: Tensor,
    row_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    dtype: torch.dtype,
) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[0], dtype=dtype)


@register_flop_formula(torch.ops.workload_gpt.fp8_product)
def _operations(
    rows: Shape, _: Shape, weight: Shape, /, *args: Any, **kwargs: Any
) -> int:
    """The floating-point operations of a product, for torch's counter of them."""
    return 2 * math.prod(rows) * weight[0]


def _scaled_product(
    rows: Tensor,
    row_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    dtype: torch.dtype,
) -> Tensor:
    return F.scaled_mm(
        rows,
        weight.t(),
        scale_a=row_scales[:, None],
        scale_recipe_a=F.ScalingType.RowWise,
        scale_b=weight_scales[None],
        scale_recipe_b=F.ScalingType.RowWise,
        output_dtype=dtype,
        use_fast_accum=True,
    )


@functools.cache
def missing_product(device: torch.device) -> str | None:
    """Why the device has no scaled product of FP8 rows; None if it has one."""
    if device.type != "cuda":
        return f"{device.type} has no scaled product of FP8 rows"
    ones = torch.ones(32, 32, device=device).to(FP8)
    scales = torch.ones(32, device=device)
    try:
        _scaled_product(ones, scales, ones, scales, dtype=torch.bfloat16)
    except (RuntimeError, ValueError) as error:  # depends on the GPU and on cuBLAS
        return str(error).splitlines()[0]
    return None


class Fp8Linear(nn.Module):
    """An `nn.Linear` with a bias, whose weight is in FP8. It has no gradients."""

    weight_scales: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, scales = quantised(linear.weight.detach())
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("weight_scales", scales)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rows, scales = quantised(x.flatten(0, -2))
        y = fp8_product(rows, scales, self.weight, self.weight_scales, dtype=x.dtype)
        # Outside of the operator, so that compiled code fuses it with what follows.
        return y.unflatten(0, x.shape[:-1]) + self.bias


def parity_bound(layers: int) -> float:
    """The largest relative error of the logits of `gpt`: ||fp8 - gpt|| / ||gpt||.

    The errors of the layers are independent, so that it grows with the root of their
    number. Measured are 0.010 to 0.011 times that root, for 2 to 48 layers.
    """
    return 0.016 * math.sqrt(layers)


def with_fp8_weights(module: nn.Module) -> nn.Module:
    """Replaces the linear layers inside a module, and returns it."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, Fp8Linear(child))
    return module
