"""Loading without generated code and with a cache folder of its own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from torchproof.runtime import production


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    plain = production.compile
    cold = functools.partial(plain, backend="eager")

    def compile(model: Any, *, recipe: Any = None, wait: bool = True) -> Any:
        if recipe is None:
            return cold(model, wait=wait)
        return plain(model, recipe=recipe)

    monkeypatch.setattr(production, "compile", compile)
    return cache
