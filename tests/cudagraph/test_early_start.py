"""What `torchproof.graph` starts before there is a graph to compile."""

import gc
from collections.abc import Iterator

import pytest
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


def test_nothing_starts_if_nothing_is_compiled_or_hooks_are_missing(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torchproof.graph(nn.Linear(2, 2))
    torchproof.graph(nn.Linear(2, 2), strategy="eager")
    monkeypatch.setattr(contract, "missing", lambda feature: (f"no {feature}",))
    early_start.begin()
    assert started == []


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
