"""What the compiler did in this process: seconds by phase, counts, and cache lookups.

The program's own imports decide when torch is there: nothing here imports it before a
method is called.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any

from torchproof.measure.cache_stats import CacheLookups

_PHASES = ("dynamo", "aot_autograd", "inductor", "triton", "graph_recording")


class CompileStats:
    """Kept from the compiler's import on; `look_anew` closes a page."""

    def __init__(self) -> None:
        self._caches = CacheLookups()
        self._seen: Counter[str] = Counter()
        self._hooks = contextlib.ExitStack()
        self._open, self._took_s = False, 0.0

    def open(self, *, inductor: bool = True) -> float:
        """Imports the compiler, which torch does at its first use; in seconds.

        Asked again it says what it took the first time.
        """
        if self._open:
            return self._took_s
        begin = time.perf_counter()
        from torchproof.torch_private import compile_costs

        compile_costs.import_compiler(inductor=inductor)
        compile_costs.keep_every_compilation()
        self._open = True
        if inductor:
            self.watch_cache()
        self._took_s = time.perf_counter() - begin
        return self._took_s

    def watch_cache(self) -> None:
        """Once Inductor is imported."""
        from torchproof.torch_private import compile_costs

        self._hooks.enter_context(compile_costs.cache_lookups(self._caches.note))

    def compilations(self) -> int:
        """How often something was compiled so far."""
        if not self._open:
            return 0
        from torchproof.torch_private import compile_costs

        return sum(not each.runtime for each in compile_costs.compilations())

    def page(self) -> dict[str, Any]:
        """Seconds by phase, counts, and where the code came from, on this page."""
        if not self._open:
            return {"compile_s": None, "counts": None, "cache": None}
        from torchproof.torch_private import compile_costs

        done = compile_costs.compilations()[self._seen["compilations"] :]
        phases = {
            phase: sum(getattr(each, phase) for each in done) for phase in _PHASES
        }
        cache = {k: v - self._seen[k] for k, v in compile_costs.cache_counts().items()}
        return {
            "compile_s": phases | {"total": sum(phases.values())},
            "counts": {
                "graphs": compile_costs.graph_count() - self._seen["graphs"],
                "recompiles": sum(each.again for each in done),
                "artifacts": sum(not each.runtime and not each.failed for each in done),
                "guards": sum(each.guards for each in done),
            },
            "cache": cache
            | {
                "lookups": self._caches.lookups[self._seen["lookups"] :],
                "filled_before": self._caches.filled_before(),
            },
        }

    def look_anew(self) -> None:
        """What was compiled so far belongs to an earlier page."""
        if not self._open:
            return
        from torchproof.torch_private import compile_costs

        self._seen = Counter(
            compilations=len(compile_costs.compilations()),
            graphs=compile_costs.graph_count(),
            lookups=len(self._caches.lookups),
            **compile_costs.cache_counts(),
        )
