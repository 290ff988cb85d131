"""AD102: a backward that waits while CUDA graph trees run other graphs."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advisories.advisory import (
    Advisory,
    CapturedGraph,
    Trigger,
)


class OverwrittenGradients(Advisory):
    """CUDA graphs overwrite what a backward still needs.

    ## Why
    In a step of several graphs, the first ones wait for their backward while others
    run. Before torch 2.15, a CUDA graph tree does not see that autograd holds the
    saved activations: it may use their memory again. The gradients are then wrong or
    NaN, or torch reports tensors "not tracked as outputs".

    ## Bad
        encoder = torch.compile(encoder, mode="reduce-overhead")
        decoder = torch.compile(decoder, mode="reduce-overhead")
        decoder(encoder(x)).sum().backward()

    ## Good
        model = torch.compile(model, mode="reduce-overhead")      # one graph
        model(x).sum().backward()

    ## Fix safety
    A mode without CUDA graphs gives the same values; it launches each kernel.
    """

    code = "AD102"
    fixed_in = "2.15"
    not_shown = ("2.11",)
    upstream = (194124,)
    reference = torch_pages.CUDAGRAPHS
    device = "cuda"
    message_text = (
        "the backward of {at.function} runs after other graphs ({late} times): CUDA"
        " graphs of {torch} can overwrite what it needs"
    )
    cause_text = (
        "a CUDA graph tree of {torch} does not see that autograd holds the saved"
        " activations of a graph whose backward is pending"
    )
    fix_text = (
        'compile without CUDA graphs: mode="default" or'
        ' mode="max-autotune-no-cudagraphs"; or make the step one graph'
        " (fullgraph=True), so that its backward follows at once"
    )
    program = """
import torch
from torch import nn

def gradients(**how):
    torch._dynamo.reset()
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.GELU()).cuda() for _ in range(4)]
    steps = [torch.compile(block, **how) for block in blocks]
    x = torch.randn(64, 256, device="cuda")
    for _ in range(8):
        for block in blocks:
            block.zero_grad()
        y = x
        for step in steps:
            y = step(y).clone()
        y.square().mean().backward()
    return [p.grad.clone() for block in blocks for p in block.parameters()]

def differ(ours, theirs):
    return any(not torch.allclose(a, b, 1e-3, 1e-5) for a, b in zip(ours, theirs))

expected = gradients(backend="eager")
assert differ(gradients(mode="reduce-overhead"), expected)

# The workaround
assert not differ(gradients(mode="default"), expected)
"""

    def triggers(self, graph: CapturedGraph) -> Iterator[Trigger]:
        late = graph.late_backwards
        if late and graph.on_gpu and graph.uses_inductor and graph.uses_cudagraphs:
            first = graph.operations[0]
            trained = (each for each in graph.operations if each.needs_gradient)
            yield Trigger(next(trained, first), {"late": late})
