"""The child process that runs torch's minifier on the graph of a candidate.

It speaks JSON lines. stdin first brings the candidate's source. Then the child writes
each smaller graph (`GraphIR`) to stdout and reads whether it fails from stdin.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from torchproof.packs.repro.graphs.expressions import NotPortable
from torchproof.packs.repro.graphs.fx_reader import Reader, RecordingInterpreter
from torchproof.process import parent_death
from torchproof.torch_private import minify, replace_backends, without_regions


class _GraphCaptured(Exception):
    """Stops the program at its first graph and carries the graph and its inputs."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.gm = gm
        self.inputs = inputs


def main() -> None:
    parent_death.hold()
    replies = sys.stdout
    sys.stdout = sys.stderr  # torch's own prints must not reach the parent
    job = json.loads(sys.stdin.readline())
    gm, inputs = _capture(job["source"])
    if not all(isinstance(value, Tensor) for value in inputs):
        return  # torch's minifier cannot handle symbolic sizes

    def fails(candidate: fx.GraphModule, values: Sequence[Any]) -> bool:
        try:
            graph = _graph_ir(candidate, values)
        except NotPortable:
            return False
        print(json.dumps(graph), file=replies, flush=True)
        return bool(json.loads(sys.stdin.readline())["fails"])

    minify(gm, inputs, fails)


def _capture(source: str) -> tuple[fx.GraphModule, Sequence[Any]]:
    # Dynamo looks up a function's module by name.
    module: Any = types.ModuleType("torchproof_candidate")
    sys.modules[module.__name__] = module
    exec(compile(source, module.__name__, "exec"), vars(module))
    fn, calls = module.make()

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


def _graph_ir(gm: fx.GraphModule, values: Sequence[Any]) -> dict[str, Any]:
    reader = Reader(gm)
    reader.read_inputs(values)
    reader.read_lines()
    plain = without_regions(gm)
    RecordingInterpreter(plain, reader).run(*values)
    return reader.graph_ir().to_json()


if __name__ == "__main__":
    main()
