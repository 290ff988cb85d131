"""Runs the calls a pack was made for, so that no request has to wait for a compiler.

The model is afterwards as it was: parameters, gradients, buffers, random numbers, and
whether it trains or evaluates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from torchproof.records import one_line
from torchproof.runtime.forward_state import save_state
from torchproof.runtime.loading import example_inputs
from torchproof.runtime.tensors.tree import walk


def state_of(model: Any) -> dict[str, Any]:
    """Whether its modules train: of the model, and the paths that differ from it."""
    if not isinstance(model, nn.Module):
        return {}
    others = [p for p, m in model.named_modules() if m.training != model.training]
    return {"training": model.training, "others": others}


@contextlib.contextmanager
def gradient_mode(gradients: bool) -> Iterator[None]:
    """As the calls of a pack ran; a caller in inference mode stays in it."""
    if gradients or torch.is_inference_mode_enabled():
        yield
    else:
        with torch.no_grad():
            yield


def warm(model: Any, run: Any, details: Mapping[str, Any]) -> list[str]:
    """Calls `run` with made inputs; a line for each call that could not be made.

    `model` is whose state is kept: the module, or None for a function.
    """
    notes: list[str] = []
    owner = model if isinstance(model, nn.Module) else None
    held = owner is not None and any(p.grad is not None for p in owner.parameters())
    before = save_state(owner, (), {}, parameters=held)
    try:
        for number, call in enumerate(details["calls"]):
            if why := call["inputs"].get("why_not"):
                notes.append(f"call {number} is not warmed: {why}")
                continue
            try:
                _warm_one(owner, run, call, train=details["train"])
            except Exception as error:
                told = one_line(f"{type(error).__name__}: {error}", 200)
                notes.append(f"call {number} fails on made inputs: {told}")
    finally:
        before.restore()
    return notes


def _warm_one(
    owner: nn.Module | None, run: Any, call: Mapping[str, Any], *, train: bool
) -> None:
    if owner is not None and call["state"]:
        set_training(owner, call["state"])
        owner.zero_grad(set_to_none=True)
    given = example_inputs.make(call["inputs"])
    with gradient_mode(call["gradients"]):
        output = run(**given) if isinstance(given, dict) else run(*given)
        if train:
            backward(output)


def set_training(owner: nn.Module, state: Mapping[str, Any]) -> None:
    if state_of(owner) == state:
        return
    others = set(state["others"])
    for path, module in owner.named_modules():
        module.training = state["training"] != (path in others)


def backward(output: Any) -> None:
    """The backward of the output's loss, else of the mean of what it has."""
    loss = getattr(output, "loss", None)
    if loss is None:
        found = [
            each.float().mean()
            for _, each in walk(output, "")
            if isinstance(each, torch.Tensor) and each.requires_grad
        ]
        loss = torch.stack(found).mean() if found else None
    if loss is not None:
        loss.backward()
