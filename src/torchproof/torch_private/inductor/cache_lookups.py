"""What torch looks up in its caches of compiled graphs, and by which facts."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchproof.torch_private.hooks import patched

PROBES: dict[str, tuple[str, ...]] = {
    "lookups of graphs": (
        "torch._inductor.codecache:FxGraphCache.load_with_key",
        "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache._lookup",
        "torch._functorch._aot_autograd.autograd_cache:autograd_cache_key",
        "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache.try_load",
    ),
    "folders of caches": (
        "torch._inductor.runtime.cache_dir_utils:cache_dir",
        "torch._inductor.runtime.cache_dir_utils:default_cache_dir",
    ),
}

_GRAPHS = "torch._inductor.codecache"
_AUTOGRAD = "torch._functorch._aot_autograd.autograd_cache"
_LINE = re.compile(r"\[(\w+)\] ([^:]+): (.*)", re.DOTALL)


@dataclass(frozen=True)
class Lookup:
    """One lookup: in which cache, by which key, made of which facts, and whether hit.

    `facts` has a hash and a text for each; AOTAutograd tells none. A graph that torch
    does not cache has no key and says why.
    """

    cache: str  # "inductor" or "aot_autograd"
    key: str | None
    hit: bool
    facts: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)
    why: str | None = None


@contextlib.contextmanager
def graph_lookups(note: Callable[[Lookup], None]) -> Iterator[None]:
    """`note(lookup)` for each graph that any thread of this process looks up."""
    graphs = importlib.import_module(_GRAPHS).FxGraphCache
    home = importlib.import_module(_AUTOGRAD)
    load, key_of = graphs.load_with_key, home.autograd_cache_key
    look_up = home.AOTAutogradCache._lookup

    @functools.wraps(load)
    def load_with_key(
        key: str, debug_lines: list[str], *args: Any, **kwargs: Any
    ) -> Any:
        graph, info = load(key, debug_lines, *args, **kwargs)
        note(Lookup("inductor", key, graph is not None, _facts(debug_lines)))
        return graph, info

    @functools.wraps(key_of)
    def autograd_cache_key(*args: Any, **kwargs: Any) -> Any:
        try:
            return key_of(*args, **kwargs)
        except Exception as error:
            why = str(error).strip().splitlines()[0][:200] if str(error) else ""
            note(Lookup("aot_autograd", None, False, why=why or type(error).__name__))
            raise

    @functools.wraps(look_up)
    def _lookup(key: str, *args: Any, **kwargs: Any) -> Any:
        entry = look_up(key, *args, **kwargs)
        note(Lookup("aot_autograd", key, entry is not None))
        return entry

    with (
        patched(graphs, "load_with_key", staticmethod(load_with_key)),
        patched(home, "autograd_cache_key", autograd_cache_key),
        patched(home.AOTAutogradCache, "_lookup", staticmethod(_lookup)),
    ):
        yield


def _facts(lines: list[str]) -> dict[str, tuple[str, str]]:
    matches = (_LINE.fullmatch(line) for line in lines)
    return {each[2]: (each[1], each[3]) for each in matches if each}


def current_cache_folder() -> str:
    """Where torch would keep compiled code in this process; nothing is made."""
    folders = importlib.import_module("torch._inductor.runtime.cache_dir_utils")
    configured = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return os.path.abspath(configured or folders.default_cache_dir())


def caches_are_on() -> bool:
    """Whether graphs are looked up at all, as the process is configured."""
    config = importlib.import_module("torch._inductor.config")
    return bool(config.fx_graph_cache) and not config.force_disable_caches


def nondefault_switches() -> dict[str, str]:
    """Switches of the compiler that decide what code it generates, as texts.

    What names a folder or a process is left out, and what is set to nothing.
    """
    switches: dict[str, str] = {}
    for name in ("torch._inductor.config", "torch._functorch.config"):
        config = importlib.import_module(name)
        for switch, value in config.get_config_copy().items():
            # One that was changed and set back does not count as default any more.
            same = config._is_default(switch) or value == config._config[switch].default
            if not same and isinstance(value, bool | int | float | str):
                switches[f"{name}.{switch}"] = repr(value)
    return switches
