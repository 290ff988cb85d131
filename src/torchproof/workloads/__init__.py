"""Small reference models: a registry that is read without importing torch.

A workload module defines `SIZES` and `make(size, batch, sequence)`, which returns
`(model, calls)`.
"""

# name -> (module, one-line description)
WORKLOADS: dict[str, tuple[str, str]] = {
    "gpt": (
        "torchproof.workloads.gpt",
        "pre-norm decoder with rotary positions; one graph, one settled recompile",
    ),
    "gpt-original": (
        "torchproof.workloads.gpt_original",
        "the same decoder as people write it: breaks, recompiles, recompile limit",
    ),
}
