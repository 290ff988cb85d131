"""torch.compile of a model that DDP or FSDP has already wrapped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import Match, SourceRule
from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import (
    DDP,
    FSDP,
    SHARD,
    Compiled,
    is_true,
    name_of,
    wrapped_before,
)
from torchproof.checking.static.source import Source
from torchproof.records import Severity


class AfterParallel(SourceRule):
    """torch.compile gets a model that is already wrapped in DDP or FSDP.

    ## Why
    After DDP, torch splits the graphs at the gradient buckets, and DDP's own forward
    causes graph breaks; with fullgraph=True it raises an error. After FSDP, the hooks
    that gather parameters break the graph at each sharded module inside; without
    use_orig_params=True nothing is compiled.

    ## Bad
        model = torch.compile(FSDP(model))

    ## Good
        for block in model.blocks:
            block.compile()
            fully_shard(block)
        fully_shard(model)

    ## Fix safety
    The values are the same up to rounding. For DDP, PyTorch itself recommends to wrap
    first and then compile: measure before you change it.
    """

    code = "CF102"
    reference = torch_pages.PARALLEL

    def read(self, source: Source) -> Iterator[Match]:
        if not any(word in source.text for word in (*DDP, *FSDP, *SHARD)):
            return
        file = compiled.of(source)
        for site in file.sites:
            wrapping = wrapped_before(site, file)
            if wrapping is None:
                continue
            text = source.brief(site.node)
            severity, message, cause, fix = _explanation(wrapping, site, source)
            yield Match(
                node=site.node,
                message=f"`{text}` {message}",
                cause=cause,
                fix=fix,
                severity=severity,
            )


def _explanation(
    wrapping: ast.Call, site: Compiled, source: Source
) -> tuple[Severity, str, str, str]:
    name = name_of(wrapping, source)
    arguments = {k.arg: k.value for k in wrapping.keywords if k.arg}
    whole = is_true(site.arguments.get("fullgraph"))
    if name in DDP:
        if whole:
            return (
                "high",
                "raises at its first call: DDP's own forward breaks the graph",
                "DDP's forward calls code that Dynamo does not trace, and"
                " fullgraph=True forbids that",
                "remove fullgraph here, or use it on the inner module: compile the"
                " module first, then wrap it",
            )
        return (
            "low",
            "also compiles DDP's forward, and splits the graphs at its buckets",
            "torch splits what is compiled after DDP at each bucket of gradients, so"
            " that sending them overlaps with backward; a bucket has 25 MB",
            "PyTorch recommends this order for DDP; for larger graphs increase"
            " bucket_cap_mb, or compile the blocks before wrapping",
        )
    if name in FSDP and not is_true(arguments.get("use_orig_params")):
        return (
            "high",
            "compiles nothing: FSDP has no use_orig_params=True",
            "Dynamo traces no FSDP module that holds flattened parameters, and the"
            " whole model runs uncompiled",
            "compile each block first and then wrap it; or use fully_shard; at least"
            " pass use_orig_params=True",
        )
    return (
        "high" if whole else "medium",
        "raises at its first call: FSDP's hooks break the graph"
        if whole
        else "causes graph breaks at the hooks of the sharded inner modules",
        f"{name} gathers parameters in hooks, and Dynamo does not trace them",
        "compile each block before sharding it: block.compile(), then"
        " fully_shard(block)",
    )
