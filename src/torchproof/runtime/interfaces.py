"""What the modules of a compiled model use of the objects above them.

`CompiledForward` and `Engine` build and own the backend, the verifier and the agreement
of ranks, which report to them through these interfaces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from torchproof.runtime.method_replacement import Options
from torchproof.runtime.status_report import Fallback
from torchproof.runtime.telemetry import Telemetry


class Forward(Protocol):
    """A compiled forward, as what its calls run sees it."""

    options: Options
    telemetry: Telemetry
    strategy: str
    why: str
    owner: nn.Module | None
    run: Callable[..., Any]

    @property
    def has_compiled(self) -> bool: ...
    def run_eager(self, /, *args: Any, **kwargs: Any) -> Any: ...
    def go_eager(self, item: Fallback | None) -> None: ...
    def agree_on_verification(self) -> None: ...


class Engine(Protocol):
    """The engine of a model, as the compiler of its graphs sees it."""

    options: Options
    telemetry: Telemetry
    find_model: Callable[[], nn.Module | None]

    def note_graph(self, gm: Any) -> None: ...
    def graph_ran(self, name: str, failure: Fallback | None = None) -> None: ...
    def has_raised(self, call: int | None) -> bool: ...
    @property
    def backend(self) -> Any: ...
    def use_backend(self, backend: Any) -> None: ...
