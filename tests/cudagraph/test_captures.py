"""What only real CUDA graphs show: random numbers in attention, memory, streams."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from graph_models import Net, close
from torch import Tensor, nn

import torchproof

# Torch warns of what may be faster; that is not the point here.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

DEVICE = "cuda"


def batch(rows: int = 8) -> Tensor:
    return torch.randn(rows, 4, device=DEVICE)


# -- what is recorded ------------------------------------------------------------------


def test_attention_with_dropout_is_recorded() -> None:
    """Its backward takes the state of the generator, which eager keeps on the host."""

    def step(q: Tensor) -> Tensor:
        with torch.enable_grad():
            heads = q.detach().requires_grad_()
            answer = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1)
            (grad,) = torch.autograd.grad(answer.sum(), heads)
        return grad

    for dtype in (torch.float32, torch.bfloat16):
        graphed = torchproof.graph(step)
        q = torch.randn(2, 4, 16, 32, device=DEVICE, dtype=dtype)
        for _ in range(2):
            assert graphed(q).shape == q.shape
        status = graphed.status()
        assert (status.replays, status.stops) == (2, ()), status


# -- memory and streams ----------------------------------------------------------------


def test_memory_is_given_back() -> None:
    def used() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).to(DEVICE)
    x = torch.randn(4096, 1024, device=DEVICE)
    torchproof.graph(model, (x,))(x)  # workspaces stay
    before = used()
    graphed = torchproof.graph(model, (x,))
    graphed(x)
    assert graphed.status().pool_bytes
    assert used() > before
    del graphed
    assert used() <= before


def test_two_models_share_a_pool() -> None:
    def wide() -> nn.Module:
        layers = nn.Linear(4, 8192), nn.GELU(), nn.Linear(8192, 2)
        return nn.Sequential(*layers).to(DEVICE).eval()

    one, other = wide(), wide()
    x = batch(4096)
    first = torchproof.graph(one, (x,))
    alone = first.status().buckets[0].pool_bytes
    second = torchproof.graph(other, (x,), pool=first)
    for _ in range(5):
        x = batch(4096)
        a, b = first(x), second(x)
        close(a, one(x))
        close(b, other(x))
    more = second.status().buckets[0].pool_bytes
    assert alone is not None and more is not None
    assert more < alone / 4


def test_a_recording_has_the_workspaces_it_needs() -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3))).to(DEVICE).eval()
    graphed = torchproof.graph(model)
    before = torch.cuda.memory_allocated()
    for size in range(1, 9):
        graphed(torch.randn(64 * size, 512, device=DEVICE))
    # None of 32 MiB for each recording.
    assert torch.cuda.memory_allocated() - before < 32 << 20
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    filled = torch.full((64 << 20,), float("nan"), device=DEVICE)
    x = torch.randn(64, 512, device=DEVICE)
    close(graphed(x), model(x))
    assert filled.isnan().all()


def test_threads_take_turns() -> None:
    model = Net().to(DEVICE).eval()
    graphed = torchproof.graph(model)

    def work(number: int) -> list[str]:
        wrong = []
        with torch.cuda.stream(torch.cuda.Stream()):
            generator = torch.Generator(DEVICE).manual_seed(number)
            for call in range(50):
                shape = (8 + 8 * (call % 2), 4)
                x = torch.randn(shape, device=DEVICE, generator=generator)
                got = graphed(x)
                with torch.no_grad():
                    if not torch.allclose(got, model(x), rtol=2e-3, atol=2e-4):
                        wrong.append(f"thread {number}, call {call}")
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(work, range(4)))
    assert graphed.falls_back == []
    assert graphed.status().recordings == 2
