"""Gives values to the weights of a model that was made on the meta device.

After the ranks have divided the weights, each layer in turn is created whole, as the
model's own process would create it, and each rank keeps its part. So no rank ever has
more than one whole layer, and the values are those of a single process.
"""

from __future__ import annotations

from typing import Any

from torchproof.records import Namespace, UserError
from torchproof.targets import tensor_parallel


def are_deferred(model: Any) -> bool:
    import torch

    return isinstance(model, torch.nn.Module) and any(
        parameter.is_meta for parameter in model.parameters()
    )


def fill(model: Any, device: str) -> None:
    """Moves deferred weights to the device, and lets `reset_parameters` fill them.

    The layers get their values in the order of their creation, from the seed that every
    target starts with. Weights that have values keep them.
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
    layers = [
        module
        for module in model.modules()
        if any(parameter.is_meta for parameter in module.parameters(recurse=False))
    ]
    for layer in layers:
        if not callable(getattr(layer, "reset_parameters", None)):
            raise UserError(
                f"the parameters of {type(layer).__name__} are on the meta device, and"
                " it has no reset_parameters() that gives them values"
            )
    # `to_empty` also empties what has values, and makes two of a tied parameter.
    known = {n: b.clone() for n, b in model.named_buffers()}
    known |= {n: p.detach() for n, p in model.named_parameters() if not p.is_meta}
    tied = tensor_parallel.tied_names(model)
    model.to_empty(device=device)
    for names in tied:
        tensor_parallel.tie(model, names, type(model).__name__)
    torch.manual_seed(0)
    for layer in layers:
        _fill_layer(layer, device)
    now = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    with torch.no_grad():
        for name, value in known.items():
            now[name].copy_(value)


def _fill_layer(layer: Any, device: str) -> None:
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    own = layer._parameters
    whole: Namespace = dict.fromkeys(own)
    for name, parameter in layer.named_parameters(recurse=False):
        empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        whole[name] = torch.nn.Parameter(empty, parameter.requires_grad)
    layer._parameters = whole  # not of a copy: FSDP2's classes cannot be copied
    try:
        layer.reset_parameters()
    finally:
        layer._parameters = own
    with torch.no_grad():
        for name, parameter in layer.named_parameters(recurse=False):
            value = whole[name].detach()
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
