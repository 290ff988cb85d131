"""Compares a wrapped target with one process; rank 0 writes a file.

Arguments: the file, a target, and cases such as tp:none, tp:inductor or planted:none.
"""

import dataclasses
import json
import sys

import torch
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import RowwiseParallel

from torchproof.targets import Job, calls, parallel, parse

CALLS = 2


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def outputs_and_gradients(loaded, fn):
    named = {
        name.replace("_orig_mod.", ""): parameter
        for name, parameter in loaded.fn.named_parameters()
    }
    for call in loaded.calls[:CALLS]:
        loaded.fn.zero_grad()
        output = calls.invoke(fn, call, train=True)
        logits = getattr(output, "logits", output).detach()
        yield logits, {name: whole(p.grad) for name, p in named.items()}


def compared(job, reference, wrap, backend):
    plan = None
    if wrap == "planted":  # a layer whose parts are never summed over the ranks
        plan = dict(reference.fn.tensor_parallel_plan)
        plan["blocks.0.mlp.2"] = RowwiseParallel(output_layouts=Partial())
        wrap = "tp"
    job = calls.resolved(dataclasses.replace(job, wrap=wrap, in_shares=True))
    loaded = calls.fresh(job)

    def compiled(module):
        return module if backend == "none" else torch.compile(module, backend=backend)

    fn = parallel.wrapped(loaded.fn, wrap, compiled, of_block=compiled, plan=plan)
    pairs = list(
        zip(
            outputs_and_gradients(loaded, fn),
            outputs_and_gradients(reference, reference.fn),
            strict=True,
        )
    )
    local = [p.to_local() if isinstance(p, DTensor) else p for p in fn.parameters()]
    gradients = [(found, expected) for (_, found), (_, expected) in pairs]
    return {
        "outputs": max(error(found, expected) for (found, _), (expected, _) in pairs),
        "gradients": {
            name: max(
                error(found[name], expected[name]) for found, expected in gradients
            )
            for name in gradients[0][1]
        },
        "elements": sum(part.numel() for part in local),
    }


path, target, *cases = sys.argv[1:]
job = Job(parse(target), train=True, device="cpu")
reference = calls.fresh(calls.resolved(job))
parallel.join("cpu")
found = {case: compared(job, reference, *case.split(":")) for case in cases}
found["one process"] = sum(p.numel() for p in reference.fn.parameters())
if torch.distributed.get_rank() == 0:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file)
parallel.leave()
