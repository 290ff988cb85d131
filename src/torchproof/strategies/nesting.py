"""Makes blocks regions of a larger graph, compiled once for all equal blocks.

Takes a block, returns the callable that replaces its forward while the whole model is
compiled.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from torchproof.strategies.strategy import NotApplicable


def region(block: nn.Module, path: str = "") -> Callable[..., Any]:
    """The block's forward as a region, as in the source lines of a strategy.

    The block is an argument of the region: torch 2.13 to 2.15 runs wrapped methods with
    the weights of the first block.
    """
    assert_plain(block, path)
    whole = torch.compiler.nested_compile_region(type(block).forward)
    return functools.partial(whole, block)


def assert_plain(block: nn.Module, path: str = "") -> None:
    """Refuses a block whose own `forward` attribute a region would replace."""
    if "forward" in vars(block):
        raise NotApplicable(
            f"{path or type(block).__name__} has a forward of its own in place of its"
            " class's: it cannot share compiled code with other blocks"
        )


@contextlib.contextmanager
def in_place(regions: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Makes the blocks regions inside the `with` block."""
    for block, forward in regions.items():
        vars(block)["forward"] = forward
    try:
        yield
    finally:
        for block in regions:
            vars(block).pop("forward", None)
