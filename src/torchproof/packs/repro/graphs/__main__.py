"""The child process that runs torch's minifier on the graph of a candidate.

The first message is the candidate's source. Then the child sends the source of each
smaller graph, and receives whether it fails.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchproof.packs.repro.graphs.graph_source import (
    NotPortable,
    graph_source,
    plain_graph,
)
from torchproof.process import Channel, hold
from torchproof.torch_private import minify, replace_backends


class _GraphCaptured(Exception):
    """Stops the program at its first graph and carries the graph and its inputs."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.gm = gm
        self.inputs = inputs


def main() -> None:
    hold()
    channel = Channel.to_parent()

    def ask(source: str) -> bool:
        channel.send({"source": source})
        return bool(channel.receive()["fails"])

    program = _load(channel.receive()["source"])
    gm, inputs = plain_graph(*_captured(program))
    calls = len(program.make()[1])
    if calls > 1 and ask(graph_source(gm, inputs)):
        calls = 1

    def fails(smaller: fx.GraphModule, values: Sequence[Any]) -> bool:
        try:
            source = graph_source(smaller, values, calls=calls)
        except (NotPortable, AttributeError):  # an input that is not a dense tensor
            return False
        return ask(source)

    minify(gm, inputs, fails)


def _load(source: str) -> Any:
    # Dynamo looks up a function's module by name.
    module: Any = types.ModuleType("torchproof_candidate")
    sys.modules[module.__name__] = module
    exec(compile(source, module.__name__, "exec"), vars(module))
    return module


def _captured(program: Any) -> tuple[fx.GraphModule, Sequence[Any]]:
    fn, calls = program.make()

    def run(gm: fx.GraphModule, _: str) -> Callable[..., Any]:
        def stop(*args: Any) -> None:
            raise _GraphCaptured(gm, args)

        return stop

    try:
        with replace_backends(run):
            compiled: Any = torch.compile(fn)
            compiled(*calls[0])
    except _GraphCaptured as captured:
        return captured.gm, captured.inputs
    raise AssertionError("Dynamo captured no graph")


if __name__ == "__main__":
    main()
