"""Compile times, compile counts, cache lookups and compiler switches."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torchproof.records import TorchConfig
from torchproof.torch_private import contract
from torchproof.torch_private.hooks import patched

CACHE_MODULE = "torch._inductor.codecache"
AUTOGRAD_CACHE_MODULE = "torch._functorch._aot_autograd.autograd_cache"
_UNLIMITED = 1_000_000  # by default torch keeps only the last 64 compilations


@dataclass(frozen=True)
class Compilation:
    """One compilation; each phase in seconds, without the phase nested in it."""

    dynamo: float
    aot_autograd: float
    inductor: float
    triton: float
    graph_recording: float
    again: bool  # a recompile
    runtime: bool  # work at run time: autotuning, graph recording
    failed: bool
    guards: int


def import_compiler(*, inductor: bool) -> None:
    """Imports what compiles, and raises `MissingHook` if it cannot be measured."""
    contract.require("measurements")
    if inductor:
        contract.require("measurements of Inductor")
        importlib.import_module(CACHE_MODULE)


def keep_every_compilation() -> None:
    utils = importlib.import_module("torch._dynamo.utils")
    utils.set_compilation_metrics_limit(_UNLIMITED)


def compilations() -> list[Compilation]:
    """All compilations of this process so far."""
    utils = importlib.import_module("torch._dynamo.utils")
    return [_compilation(entry) for entry in utils.get_compilation_metrics()]


def _compilation(entry: Any) -> Compilation:
    def seconds(name: str) -> float:
        return (getattr(entry, name) or 0) / 1e6

    whole = seconds("dynamo_cumulative_compile_time_us")
    backward = seconds("backward_cumulative_compile_time_us")
    autograd = seconds("aot_autograd_cumulative_compile_time_us") or backward
    inductor = seconds("inductor_cumulative_compile_time_us")
    triton = seconds("triton_compile_time_us")
    return Compilation(
        dynamo=max(0.0, whole - autograd),
        aot_autograd=max(0.0, autograd - inductor),
        inductor=max(0.0, inductor - triton),
        triton=triton,
        graph_recording=seconds("runtime_cudagraphify_time_us"),
        again=bool(getattr(entry, "recompile_reason", None)),
        runtime=bool(entry.is_runtime),
        failed=bool(entry.fail_type),
        guards=entry.guard_count or 0,
    )


def graph_count() -> int:
    """How many graphs were passed to a backend so far."""
    utils = importlib.import_module("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"])


@contextlib.contextmanager
def graph_breaks(note: Callable[[str], None]) -> Iterator[None]:
    """Calls `note` with torch's text of each graph break.

    Torch's own counter lacks breaks at branches and those that skip a frame. A handler
    of its trace would get all, but makes each compilation write its graphs and code.
    """
    logging = importlib.import_module("torch._logging")
    write = logging.trace_structured

    @functools.wraps(write)
    def trace_structured(name: str, *args: Any, **kwargs: Any) -> None:
        if name == "artifact":
            values = signature.bind(name, *args, **kwargs).arguments
            if values["metadata_fn"]().get("name") == "dynamo_graph_break_reason":
                note(values["payload_fn"]())
        write(name, *args, **kwargs)

    signature = inspect.signature(write)
    with patched(logging, "trace_structured", trace_structured):
        yield


def cache_counts() -> dict[str, int]:
    """Torch's counts of hits, misses and bypasses, summed over both caches.

    `saved` is how many graphs were saved in AOTAutograd's cache.
    """
    counters = importlib.import_module("torch._dynamo.utils").counters
    words = {"hits": "hit", "misses": "miss", "bypasses": "bypass"}
    counts = {
        what: counters["inductor"][f"fxgraph_cache_{word}"]
        + counters["aot_autograd"][f"autograd_cache_{word}"]
        for what, word in words.items()
    }
    return counts | {"saved": counters["aot_autograd"]["autograd_cache_saved"]}


@contextlib.contextmanager
def cache_lookups(note: Callable[[str, str, bool], None]) -> Iterator[None]:
    """Calls `note(cache, key, hit)` for each lookup in a graph cache."""
    graphs = importlib.import_module(CACHE_MODULE).FxGraphCache
    autograd = importlib.import_module(AUTOGRAD_CACHE_MODULE).AOTAutogradCache
    load = graphs.load_with_key
    look_up = autograd._lookup

    @functools.wraps(load)
    def load_with_key(key: str, *args: Any, **kwargs: Any) -> Any:
        graph, info = load(key, *args, **kwargs)
        note("inductor", key, graph is not None)
        return graph, info

    @functools.wraps(look_up)
    def _lookup(key: str, *args: Any, **kwargs: Any) -> Any:
        entry = look_up(key, *args, **kwargs)
        note("aot_autograd", key, entry is not None)
        return entry

    with (
        patched(graphs, "load_with_key", staticmethod(load_with_key)),
        patched(autograd, "_lookup", staticmethod(_lookup)),
    ):
        yield


def inductor_defaults() -> TorchConfig:
    """All switches of Inductor with their values in this process."""
    config = importlib.import_module("torch._inductor.config")
    return dict(config.get_config_copy())


def changed_switches() -> TorchConfig:
    """The compiler switches that differ from torch's defaults in this process.

    Only modules that are already imported are read.
    """
    switches: dict[str, Any] = {}
    for name in ("torch._inductor.config", "torch._dynamo.config"):
        config = sys.modules.get(name)
        if config is None:
            continue
        for switch, value in config.get_config_copy().items():
            if not config._is_default(switch):
                default = config._config[switch].default
                if value is not default and value != default:
                    switches[f"{name}.{switch}"] = value
    return switches


def eager_random() -> contextlib.AbstractContextManager[Any]:
    """Makes compiled code draw the same random numbers as eager code."""
    config = importlib.import_module("torch._inductor.config")
    context: contextlib.AbstractContextManager[Any] = config.patch(fallback_random=True)
    return context
