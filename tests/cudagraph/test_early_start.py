"""What `torchproof.graph` starts before there is a graph to compile."""

import gc
import importlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.records import collector_paused
from torchproof.torch_private import contract, early_start


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of what was started, in order."""
    names: list[str] = []
    monkeypatch.setattr(early_start, "start_workers", lambda: names.append("workers"))
    monkeypatch.setattr(early_start, "compute_keys", lambda: names.append("key"))
    early_start.begin.cache_clear()
    yield names
    early_start.begin.cache_clear()


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def test_a_compiling_strategy_starts_the_workers_once(started: list[str]) -> None:
    torchproof.graph(doubled, strategy="full")
    torchproof.graph(doubled, strategy="full")
    assert started == ["workers", "key"]


@pytest.mark.parametrize("options", [{}, {"strategy": "eager"}])
def test_nothing_starts_if_nothing_is_compiled(
    options: dict[str, str], started: list[str]
) -> None:
    torchproof.graph(nn.Linear(2, 2), **options)
    assert started == []


def test_nothing_starts_without_the_hooks(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "missing", lambda feature: (f"no {feature}",))
    early_start.begin()
    assert started == []


@pytest.mark.parametrize("initialized", [True, False])
def test_triton_is_identified_where_a_device_is_in_use(
    initialized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[int] = []
    done = threading.Event()

    def identify(device: int) -> None:
        devices.append(device)
        raise OSError("no C compiler")

    def compute_all(keys: list[Callable[[], None]]) -> None:
        original(keys)
        done.set()

    original = early_start._compute_all
    monkeypatch.setattr(early_start, "_compute_all", compute_all)
    monkeypatch.setattr(early_start, "_identify_triton", identify)
    monkeypatch.setattr(early_start, "_import_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    torch_key = SimpleNamespace(prefetch=lambda: None)
    monkeypatch.setattr(codecache(), "torch_key", torch_key)
    early_start.compute_keys()
    assert done.wait(20 if initialized else 0) is initialized
    assert devices == ([3] if initialized else [])


def codecache() -> ModuleType:
    return importlib.import_module("torch._inductor.codecache")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before_after_a_pause(enabled: bool) -> None:
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ImportError), collector_paused():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
