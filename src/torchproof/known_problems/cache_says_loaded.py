"""`load_cache_artifacts` returns the same whether or not the cache will be hit.

It reports what was unpacked. If one setting differs, everything is compiled again.

Workaround: count the cache hits of a first call.

Group: diagnosis
Needs: inductor
"""

import os
import tempfile

import torch
from torch._dynamo.utils import counters


def first_call(**setting):
    torch._dynamo.reset()
    counters.clear()
    with torch._inductor.config.patch(**setting):
        torch.compile(lambda x: x.sin() * 2)(torch.ones(64))
    return counters["inductor"]["fxgraph_cache_hit"]


first_call()
saved, _ = torch.compiler.save_cache_artifacts()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
loaded = torch.compiler.load_cache_artifacts(saved)
assert loaded.inductor_artifacts and first_call(epilogue_fusion=False) == 0

# The workaround
assert first_call() == 1
