"""Wraps a module as the step to record: inference, or forward, loss and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchproof.records import UserError
from torchproof.torch_private import trees

Forward = Callable[..., Any]


def inference(forward: Forward) -> Forward:
    def answer(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return forward(*args, **kwargs)

    return answer


def with_loss(forward: Forward) -> Forward:
    """Returns the output and its loss: `.loss`, else the mean of its tensors."""

    def output_and_loss(*args: Any, **kwargs: Any) -> tuple[Any, Tensor]:
        output = forward(*args, **kwargs)
        return output, loss_of(output)

    return output_and_loss


def training(output_and_loss: Forward) -> Forward:
    def forward_and_backward(*args: Any, **kwargs: Any) -> Any:
        output, loss = output_and_loss(*args, **kwargs)
        loss.backward()
        return output

    return forward_and_backward


def loss_of(output: Any) -> Tensor:
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    means = [
        tensor.float().mean()
        for tensor in trees.tensors(output)
        if tensor.is_floating_point() and tensor.requires_grad
    ]
    if not means:
        raise UserError(
            "train=True: no floating-point tensor of the output requires a gradient"
        )
    return means[0] if len(means) == 1 else torch.stack(means).mean()
