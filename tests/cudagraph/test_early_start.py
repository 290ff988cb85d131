"""What `torchproof.graph` starts before there is a graph to compile."""

import functools
import gc

import pytest
from torch import nn

import torchproof
from torchproof.records import collector_paused
from torchproof.torch_private import early_start


def test_workers_start_once_and_for_strategies_that_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []
    monkeypatch.setattr(early_start, "start_workers", lambda: started.append("workers"))
    monkeypatch.setattr(early_start, "compute_keys", lambda: started.append("key"))
    begin = functools.cache(early_start.begin.__wrapped__)
    monkeypatch.setattr(early_start, "begin", begin)
    for strategy in ("eager", "full", "full"):
        torchproof.graph(nn.Linear(2, 2), strategy=strategy)
        assert started == (["workers", "key"] if strategy == "full" else [])


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
