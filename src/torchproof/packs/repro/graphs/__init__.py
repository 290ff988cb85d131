"""Graph candidates: a graph that Dynamo captured, as torch code that anyone can run.

`recording` writes them in the process that runs the target, `variants` and `reducing`
change them where torch is not loaded; `sketch` is what they pass to each other.
"""

from __future__ import annotations

from torchproof.packs.repro.graphs.graph_reducer import reduced
from torchproof.packs.repro.graphs.variants import variants

__all__ = ["reduced", "variants"]
