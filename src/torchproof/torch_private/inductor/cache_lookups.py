"""Lookups in torch's caches of compiled graphs."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torchproof.torch_private import contract
from torchproof.torch_private.hooks import patched

_GRAPHS = "torch._inductor.codecache"
_AUTOGRAD = "torch._functorch._aot_autograd.autograd_cache"
RANKS_FEATURE = "cache keys for all ranks"


@dataclass(frozen=True)
class Lookup:
    """One lookup in a graph cache.

    If torch does not cache the graph, `key` is None and `why` the reason.
    """

    cache: str  # "inductor" or "aot_autograd"
    key: str | None
    hit: bool
    why: str | None = None


@dataclass(frozen=True)
class LookupLog:
    """All lookups of this process, in the order in which they end."""

    lookups: list[Lookup] = field(default_factory=list)

    @property
    def graphs(self) -> list[Lookup]:
        """The latest lookup of each graph."""
        return [*{k.key: k for k in self.lookups if k.cache == "inductor"}.values()]

    @property
    def bypassed(self) -> list[str]:
        return [each.why for each in self.lookups if each.why is not None]


@contextlib.contextmanager
def graph_lookups(ranks: int) -> Iterator[LookupLog]:
    """Notes each graph lookup in this process, in any thread.

    The keys are those of a pack for so many ranks.
    """
    log = LookupLog()
    note = log.lookups.append  # which no other thread can interrupt
    with keys_for_ranks(ranks), _noted(note):
        yield log


@contextlib.contextmanager
def _noted(note: Callable[[Lookup], None]) -> Iterator[None]:
    graphs = importlib.import_module(_GRAPHS).FxGraphCache
    home = importlib.import_module(_AUTOGRAD)
    load = graphs.load_with_key
    key_of = home.autograd_cache_key
    look_up = home.AOTAutogradCache._lookup

    @functools.wraps(load)
    def load_with_key(key: str, *args: Any, **kwargs: Any) -> Any:
        graph, info = load(key, *args, **kwargs)
        note(Lookup(cache="inductor", key=key, hit=graph is not None))
        return graph, info

    @functools.wraps(key_of)
    def autograd_cache_key(*args: Any, **kwargs: Any) -> Any:
        try:
            return key_of(*args, **kwargs)
        except Exception as error:
            why = _first_line(error)
            note(Lookup(cache="aot_autograd", key=None, hit=False, why=why))
            raise

    @functools.wraps(look_up)
    def _lookup(key: str, *args: Any, **kwargs: Any) -> Any:
        entry = look_up(key, *args, **kwargs)
        note(Lookup(cache="aot_autograd", key=key, hit=entry is not None))
        return entry

    with (
        patched(graphs, "load_with_key", staticmethod(load_with_key)),
        patched(home, "autograd_cache_key", autograd_cache_key),
        patched(home.AOTAutogradCache, "_lookup", staticmethod(_lookup)),
    ):
        yield


@contextlib.contextmanager
def keys_for_ranks(ranks: int) -> Iterator[None]:
    """Torch looks graphs up by the ranks and groups of a mesh, on all ranks alike.

    By itself, it puts a mesh into a key with the rank and memory addresses of this
    process, so that no other process finds the graph. One rank has no meshes.
    """
    if ranks == 1 or contract.missing(RANKS_FEATURE):
        yield
        return
    codecache = importlib.import_module(_GRAPHS)
    mesh_type = importlib.import_module("torch.distributed.device_mesh").DeviceMesh
    original = codecache.FxGraphCachePickler.__init__

    def reduced(mesh: Any) -> Any:
        # A group may have another name on each rank, and code finds groups by name.
        ranks = mesh.mesh.tolist()
        names = (mesh.mesh_dim_names, tuple(mesh._dim_group_names))
        return codecache._ident, (mesh.device_type, ranks, names)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.dispatch_table[mesh_type] = reduced

    with patched(codecache.FxGraphCachePickler, "__init__", init):
        yield


def _first_line(error: Exception) -> str:
    line = str(error).strip().splitlines()[0][:200] if str(error) else ""
    return line or type(error).__name__


def current_cache_folder() -> str:
    """The folder for compiled code in this process; it is not created."""
    folders = importlib.import_module("torch._inductor.runtime.cache_dir_utils")
    configured = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return os.path.abspath(configured or folders.default_cache_dir())


def caches_are_on() -> bool:
    """Whether the configuration enables the graph caches."""
    config = importlib.import_module("torch._inductor.config")
    return bool(config.fx_graph_cache) and not config.force_disable_caches


def nondefault_switches() -> dict[str, str]:
    """The compiler switches that differ from their defaults, as text.

    Only booleans, numbers and strings are included.
    """
    switches: dict[str, str] = {}
    for name in ("torch._inductor.config", "torch._functorch.config"):
        config = importlib.import_module(name)
        for switch, value in config.get_config_copy().items():
            # Torch does not report a switch that was changed and set back as default.
            same = config._is_default(switch) or value == config._config[switch].default
            if not same and isinstance(value, bool | int | float | str):
                switches[f"{name}.{switch}"] = repr(value)
    return switches
