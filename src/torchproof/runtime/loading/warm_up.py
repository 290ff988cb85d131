"""Runs the calls of a pack once, so that no request has to wait for the compiler.

Takes the model and the details of the pack, returns a note for each call that failed.
Restores the model afterwards: parameters, gradients, buffers, random state and training
mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from torchproof.records import one_line
from torchproof.runtime.forward_state import save_state
from torchproof.runtime.loading import example_inputs
from torchproof.runtime.loading.pack_details import (
    CachesDetails,
    PackedCall,
    TrainingState,
)
from torchproof.torch_private import trees


def state_of(model: Any) -> TrainingState | None:
    """The training mode of the model; None if it is a function."""
    if not isinstance(model, nn.Module):
        return None
    others = (p for p, m in model.named_modules() if m.training != model.training)
    return TrainingState(model.training, tuple(others))


@contextlib.contextmanager
def gradient_mode(gradients: bool) -> Iterator[None]:
    """Enables gradients as at the build; a caller in inference mode stays in it."""
    if gradients or torch.is_inference_mode_enabled():
        yield
    else:
        with torch.no_grad():
            yield


def warm(model: Any, run: Any, eager: Any, details: CachesDetails) -> list[str]:
    """Calls `run` with generated inputs; returns a note for each call that was not run.

    `model` is the module whose state is restored, or None for a function. Generated
    inputs may be invalid for a model: then `eager` fails with them, too. An error of
    `run` alone is a defect, and is raised.
    """
    notes: list[str] = []
    owner = model if isinstance(model, nn.Module) else None
    has_gradients = owner is not None and any(
        parameter.grad is not None for parameter in owner.parameters()
    )
    before = save_state(owner, (), {}, parameters=has_gradients)
    try:
        for number, call in enumerate(details.calls):
            if why := call.inputs.why_not:
                notes.append(f"call {number} was not run for the warm-up: {why}")
                continue
            if owner is not None and call.state is not None:
                set_training(owner, call.state)
            try:
                _warm_one(owner, run, call, train=details.train)
            except Exception:
                if (why := _failure(owner, eager, call, train=details.train)) is None:
                    raise
                notes.append(f"call {number} fails with generated inputs: {why}")
    finally:
        before.restore()
    return notes


def _failure(
    owner: nn.Module | None, eager: Any, call: PackedCall, *, train: bool
) -> str | None:
    """How eager fails with generated inputs; None if it runs."""
    try:
        _warm_one(owner, eager, call, train=train)
    except Exception as error:
        return one_line(f"{type(error).__name__}: {error}", 200)
    return None


def _warm_one(
    owner: nn.Module | None, run: Any, call: PackedCall, *, train: bool
) -> None:
    if owner is not None:
        owner.zero_grad(set_to_none=True)
    inputs = example_inputs.make(call.inputs)
    with gradient_mode(call.gradients):
        output = run(**inputs) if isinstance(inputs, dict) else run(*inputs)
        if train:
            backward(output)


def set_training(owner: nn.Module, state: TrainingState) -> None:
    if state_of(owner) == state:
        return
    others = set(state.others)
    for path, module in owner.named_modules():
        module.training = state.training != (path in others)


def backward(output: Any) -> None:
    """Runs backward from the output's `.loss`, else from the mean of its tensors."""
    loss = getattr(output, "loss", None)
    if loss is None:
        means = [
            each.float().mean()
            for each in trees.tensors(output, objects=True)
            if each.requires_grad
        ]
        loss = torch.stack(means).mean() if means else None
    if loss is not None:
        loss.backward()
