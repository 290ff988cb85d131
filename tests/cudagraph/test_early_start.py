"""When `torchproof.graph` imports the compiler, and how."""

import gc

import pytest
from torch import Tensor, nn

import torchproof
from torchproof.torch_private import early_start


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes that the compiler was imported."""
    names: list[str] = []
    monkeypatch.setattr(
        early_start, "import_compiler", lambda: names.append("compiler")
    )
    return names


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def test_a_compiling_strategy_imports_the_compiler_at_once(imports: list[str]) -> None:
    torchproof.graph(doubled, strategy="full")
    assert imports == ["compiler"]


@pytest.mark.parametrize("options", [{}, {"strategy": "eager"}, {"wait": False}])
def test_the_compiler_is_not_imported_before_it_is_needed(
    options: dict[str, object], imports: list[str]
) -> None:
    torchproof.graph(nn.Linear(2, 2), **options)  # type: ignore[arg-type]
    assert imports == []


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before_after_a_pause(enabled: bool) -> None:
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ImportError), early_start.collector_paused():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
