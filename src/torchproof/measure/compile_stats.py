"""Statistics of the compiler in this process: seconds by phase, counts, cache lookups.

The module does not import torch; its methods do. A script under measurement decides
itself when torch is imported.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from torchproof.measure.replies import CacheUse, Facts, Lookup
from torchproof.observe import read_break

CACHE_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_COARSE_S = 0.05  # file times come from a clock that lags by some milliseconds
_PHASES = ("dynamo", "aot_autograd", "inductor", "triton", "graph_recording")


class CacheLookups:
    """The cache lookups of this process, and the state of its cache folders."""

    def __init__(self) -> None:
        self._started_s = time.time()
        self._missed: set[tuple[str, str]] = set()
        self.lookups: list[Lookup] = []

    def note(self, cache: str, key: str, hit: bool) -> None:
        """Adds a lookup. A miss stores the graph, so a later hit is of this process."""
        self.lookups.append(Lookup(cache, hit, (cache, key) in self._missed))
        if not hit:
            self._missed.add((cache, key))

    def filled_before(self) -> str | None:
        """Returns a cache folder that holds files older than this process.

        Torch does not count every hit: it finds kernels by their source even if graph
        caches are disabled.
        """
        for variable in CACHE_FOLDERS:
            folder = os.environ.get(variable)
            if folder and any(map(self._is_older, Path(folder).rglob("*"))):
                return folder
        return None

    def _is_older(self, path: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):  # torch renames cache files
            return path.is_file() and path.stat().st_ctime < self._started_s - _COARSE_S
        return False


class CompileStats:
    """Counts from the import of the compiler on; `reset` starts new counts."""

    def __init__(self) -> None:
        self._lookups = CacheLookups()
        self._breaks: list[tuple[Any, ...]] = []  # by place and cause
        self._at_reset: Counter[str] = Counter()
        self._hooks = contextlib.ExitStack()
        self._costs: Any = None  # `compile_costs`, once it is imported
        self._import_s = 0.0

    def open(self, *, inductor: bool = True) -> float:
        """Imports the compiler, which torch does lazily; returns the seconds it took.

        Later calls return the seconds of the first one.
        """
        if self._costs is not None:
            return self._import_s
        begin = time.perf_counter()
        from torchproof.torch_private import compile_costs

        compile_costs.import_compiler(inductor=inductor)
        compile_costs.keep_every_compilation()
        self._hooks.enter_context(compile_costs.graph_breaks(self._note_break))
        self._costs = compile_costs
        if inductor:
            self.watch_cache()
        self._import_s = time.perf_counter() - begin
        return self._import_s

    def watch_cache(self) -> None:
        """Records cache lookups; call it once Inductor is imported."""
        self._hooks.enter_context(self._costs.cache_lookups(self._lookups.note))

    def _note_break(self, text: str) -> None:
        reason, frames = read_break(text)
        place = (frames[-1].file, frames[-1].line) if frames else None
        self._breaks.append((place, reason.type))

    def compilations(self) -> int:
        """Returns the number of compilations so far."""
        if self._costs is None:
            return 0
        return sum(not each.runtime for each in self._costs.compilations())

    def since_reset(self) -> Facts:
        """Returns seconds by phase, counts and cache lookups since the last reset."""
        if (costs := self._costs) is None:
            return Facts()
        compilations = costs.compilations()[self._at_reset["compilations"] :]
        phases = {
            phase: sum(getattr(each, phase) for each in compilations)
            for phase in _PHASES
        }
        cache = {k: v - self._at_reset[k] for k, v in costs.cache_counts().items()}
        return Facts(
            compile_s=phases | {"total": sum(phases.values())},
            counts={
                "graphs": costs.graph_count() - self._at_reset["graphs"],
                "graph_breaks": len(set(self._breaks[self._at_reset["breaks"] :])),
                "recompiles": sum(each.again for each in compilations),
                "artifacts": sum(
                    not each.runtime and not each.failed for each in compilations
                ),
                "guards": sum(each.guards for each in compilations),
            },
            cache=CacheUse(
                **cache,
                lookups=tuple(self._lookups.lookups[self._at_reset["lookups"] :]),
                filled_before=self._lookups.filled_before(),
            ),
        )

    def reset(self) -> None:
        """Starts new counts: later reports leave out what was compiled so far."""
        if (costs := self._costs) is None:
            return
        self._at_reset = Counter(
            compilations=len(costs.compilations()),
            graphs=costs.graph_count(),
            breaks=len(self._breaks),
            lookups=len(self._lookups.lookups),
            **costs.cache_counts(),
        )
