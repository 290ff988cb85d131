"""Recordings on the CPU in place of CUDA graphs."""

from collections.abc import Iterator

import pytest
import stage_compiler
import strip
import torch


@pytest.fixture(autouse=True)
def strips() -> Iterator[None]:
    torch.manual_seed(0)
    with strip.installed():
        yield


@pytest.fixture
def compiler() -> Iterator[stage_compiler.Compiler]:
    with stage_compiler.installed() as compiler:
        yield compiler
