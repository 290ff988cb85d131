"""Blocks as regions of a larger graph: compiled once for all of their kind.

In comes a block; out goes what stands for its forward while the whole is compiled.
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
    """The block's forward as a region, by the lines that a strategy prints.

    The block is an argument of it: methods that are wrapped run with the weights of the
    first block under torch 2.13 to 2.15.
    """
    assert_plain(block, path)
    whole = torch.compiler.nested_compile_region(type(block).forward)
    return functools.partial(whole, block)


def assert_plain(block: nn.Module, path: str = "") -> None:
    """A forward that was put on the block itself would be lost."""
    if "forward" in vars(block):
        raise NotApplicable(
            f"{path or type(block).__name__} has a forward of its own in place of its"
            " class's: it cannot be compiled for all blocks"
        )


@contextlib.contextmanager
def in_place(regions: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """The blocks are regions meanwhile, and afterwards as they were."""
    for block, forward in regions.items():
        vars(block)["forward"] = forward
    try:
        yield
    finally:
        for block in regions:
            vars(block).pop("forward", None)
