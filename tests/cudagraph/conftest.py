"""Graphed steps on the CPU, where a test double records, and on a GPU.

A test that takes `device` runs on both; the other tests run on the CPU.
"""

from collections.abc import Iterator

import pytest
import stage_compiler
import strip
import torch

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(autouse=True)
def recordings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Recordings on the CPU in place of CUDA graphs, unless the test has a GPU."""
    torch.manual_seed(0)
    if request.node.get_closest_marker("gpu"):
        torch._dynamo.reset()  # another test may have used up the recompile limit
        yield
        return
    with strip.installed():
        yield


@pytest.fixture
def compiler(
    request: pytest.FixtureRequest,
) -> Iterator[stage_compiler.Compiler | None]:
    """In place of the compile process; on a GPU, the real one compiles."""
    if request.node.get_closest_marker("gpu"):
        yield None
        return
    with stage_compiler.installed() as compiler:
        yield compiler


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Recording on the CPU makes Dynamo skip code for good; on a GPU it does not."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
