"""What a program does with tensors is seen, whichever way it does it."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch

from torchproof.torch_private.operations import Operations

Use = Callable[[torch.Tensor], Any]

USES: dict[str, Use] = {
    "add": lambda t: t + 1,
    "item": lambda t: t[0].item(),
    "numpy": lambda t: t.numpy(),
    "list argument": lambda t: torch.stack([t, t]),
    "in place": lambda t: t.zero_(),
    "foreach": lambda t: torch._foreach_add([t], 1.0),
    "print": lambda t: repr(t),
    "deepcopy": lambda t: copy.deepcopy(t),
    "save": lambda t: torch.save(t, io.BytesIO()),
}
LOOKS: dict[str, Use] = {
    "index": lambda t: t[:2],
    "detach": lambda t: t.detach(),
    "shape": lambda t: (t.shape, t.numel(), t.is_contiguous()),
    "like": lambda t: (torch.zeros_like(t), t.new_empty(2)),
}


def seen(use: Use) -> list[str]:
    tensor, names = torch.ones(3), []

    def see(name: str, tensors: list[Any]) -> None:
        if any(each.untyped_storage()._cdata == key for each in tensors):
            names.append(name)

    key = tensor.untyped_storage()._cdata
    with Operations(see, lambda tensor: False):
        use(tensor)
    return names


def test_uses_are_seen_and_looks_are_not() -> None:
    assert [name for name, use in USES.items() if not seen(use)] == []
    assert [name for name, look in LOOKS.items() if seen(look)] == []


def test_nothing_stays_behind() -> None:
    before = {name: getattr(torch.Tensor, name) for name in dir(torch.Tensor)}
    with Operations(lambda name, tensors: None, lambda tensor: True):
        assert torch.Tensor.to is not before["to"]
    after = {name: getattr(torch.Tensor, name) for name in dir(torch.Tensor)}
    assert after["to"] is before["to"] and after["cpu"] is before["cpu"]
    assert after["__deepcopy__"] is before["__deepcopy__"]


def test_what_stands_for_a_tensor_on_cuda_is_copied_to_the_host() -> None:
    tensor = torch.ones(3)
    with Operations(lambda name, tensors: None, lambda each: each is tensor):
        copies = [tensor.cpu(), tensor.to("cpu"), tensor.to(torch.device("cpu"))]
        array = tensor.numpy()
        same = tensor.to(torch.float32)
    tensor.zero_()
    assert all(each.sum() == 3 for each in (*copies, array))
    assert same.sum() == 0
