"""Gives values to the weights of a model that was made on the meta device.

After the ranks have divided the weights, each layer in turn is created whole, as the
model's own process would create it, and each rank keeps its part. So no rank ever has
more than one whole layer, and the values are those of a single process.
"""

from __future__ import annotations

import copy
from typing import Any

from torchproof.records import UserError


def are_deferred(model: Any) -> bool:
    import torch

    return isinstance(model, torch.nn.Module) and any(
        parameter.is_meta for parameter in model.parameters()
    )


def fill(model: Any, device: str) -> None:
    """Moves deferred weights to the device, and calls `reset_parameters` of each layer.

    The layers get their values in the order of their creation, from the seed that every
    target starts with.
    """
    import torch

    if not are_deferred(model):
        return
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise UserError(
                f"the buffer {name} is on the meta device, where it has no values:"
                " create buffers on the device of the calls"
            )
    layers = [m for m in model.modules() if any(True for _ in m.parameters(False))]
    for layer in layers:
        if not callable(getattr(layer, "reset_parameters", None)):
            raise UserError(
                f"the parameters of {type(layer).__name__} are on the meta device, and"
                " it has no reset_parameters() that gives them values"
            )
    buffers = dict(model.named_buffers())
    model.to_empty(device=device)
    for name, buffer in buffers.items():  # `to_empty` has emptied them too
        model.get_buffer(name).copy_(buffer)
    torch.manual_seed(0)
    for layer in layers:
        _fill_layer(layer, device)


def _fill_layer(layer: Any, device: str) -> None:
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    own = dict(layer.named_parameters(recurse=False))
    whole = copy.copy(layer)
    whole._parameters = {
        name: torch.nn.Parameter(
            torch.empty(parameter.shape, dtype=parameter.dtype, device=device),
            requires_grad=parameter.requires_grad,
        )
        for name, parameter in own.items()
    } | {name: None for name, each in layer._parameters.items() if each is None}
    whole.reset_parameters()
    with torch.no_grad():
        for name, parameter in own.items():
            value = whole._parameters[name].detach()
            if isinstance(parameter, DTensor):
                # Every rank has the same values: nothing needs to be sent.
                value = distribute_tensor(
                    value,
                    parameter.device_mesh,
                    parameter.placements,
                    src_data_rank=None,
                ).to_local()
                parameter = parameter.to_local()
            parameter.copy_(value)
