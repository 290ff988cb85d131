"""torch.compile of a model that DDP or FSDP has already wrapped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import Compilation, Compiled, is_true
from torchproof.checking.static.patterns.pattern import (
    FilePattern,
    PatternMatch,
    shorten,
)
from torchproof.checking.static.source import Source, walk
from torchproof.records import Severity

DDP = ("DistributedDataParallel", "DDP")
FSDP = ("FullyShardedDataParallel", "FSDP")
SHARD = ("fully_shard",)


class AfterParallel(FilePattern):
    """The model is compiled after DDP or FSDP wrapped it."""

    code = "CF102"

    def read(self, source: Source) -> Iterator[PatternMatch]:
        if not any(word in source.text for word in (*DDP, *FSDP, *SHARD)):
            return
        file = compiled.of(source)
        for site in file.sites if file else ():
            assert file is not None
            wrapping = wrapped_before(site, file)
            if wrapping is None:
                continue
            text = shorten(source.text_of(site.node))
            severity, message, cause, fix = _explanation(wrapping, site, source)
            yield PatternMatch(
                node=site.node,
                message=f"`{text}` {message}",
                cause=cause,
                fix=fix,
                severity=severity,
            )


def wrapped_before(site: Compiled, file: Compilation) -> ast.Call | None:
    """The DDP or FSDP call that wrapped the compiled model, if the file shows it."""
    subject: ast.AST | None = site.subject
    for _ in range(3):
        if isinstance(subject, ast.Call):
            called = _name(subject, file.source)
            return subject if called in (*DDP, *FSDP, *SHARD) else None
        if (
            isinstance(subject, ast.Name)
            and (shard := _sharded(subject, file)) is not None
        ):
            return shard
        if not isinstance(subject, ast.Name | ast.Attribute):
            return None
        subject = file.bindings.meaning(subject)
    return None


def _sharded(name: ast.Name, file: Compilation) -> ast.Call | None:
    """The call `fully_shard(model)`, if inner modules are sharded too.

    The hooks of the outermost module run outside the compiled code.
    """
    if "fully_shard" not in file.source.text:
        return None
    calls: dict[bool, ast.Call] = {}
    for node in walk(file.bindings.scope(name)):
        if not isinstance(node, ast.Call) or node.lineno >= name.lineno:
            continue
        if _name(node, file.source) in SHARD and node.args:
            argument = node.args[0]
            calls[isinstance(argument, ast.Name) and argument.id == name.id] = node
    return calls[True] if len(calls) == 2 else None


def _name(node: ast.Call, source: Source) -> str:
    return (source.dotted(node.func) or "").rpartition(".")[2]


def _explanation(
    wrapping: ast.Call, site: Compiled, source: Source
) -> tuple[Severity, str, str, str]:
    name = _name(wrapping, source)
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
