"""AD102: a backward that waits while CUDA graph trees run other graphs."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advisories.advisory import (
    Advisory,
    AdvisoryGroup,
    CapturedGraph,
    Trigger,
)
from torchproof.records import Setting


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
    problem = "pending_backward"
    reference = torch_pages.CUDAGRAPHS
    message_text = (
        "the backward of {at.function} runs after other graphs ({late} times), which"
        " can overwrite what it needs"
    )
    cause_text = (
        "a CUDA graph tree of {torch} does not see that autograd holds the saved"
        " activations of a graph whose backward is pending"
    )

    def setting(self, group: AdvisoryGroup) -> Setting | None:
        """No CUDA graphs, where they were asked for."""
        arguments = group.facts.compile_arguments
        if "triton.cudagraphs" in arguments.get("options", ""):
            return None
        match arguments.get("mode"):
            case None | "default":
                return Setting("inductor.triton.cudagraphs", False)
            case "reduce-overhead":
                return Setting("compile.mode", "default")
            case mode:
                return Setting("compile.mode", f"{mode}-no-cudagraphs")

    def triggers(self, graph: CapturedGraph) -> Iterator[Trigger]:
        late = graph.event.late_backwards
        if late and graph.on_gpu and graph.uses_inductor and graph.uses_cudagraphs:
            first = graph.operations[0]
            trained = (each for each in graph.operations if each.needs_gradient)
            yield Trigger(next(trained, first), {"late": late})
