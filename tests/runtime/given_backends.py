"""Faults of a backend that the user gives to torchproof.compile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from injections import Injection


class GivenBackend(Injection):
    """A backend of the user's; before it is armed, it runs graphs as they are."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_armed = False
        self.arguments = {"backend": self._compile}

    def arm(self) -> None:
        self.is_armed = True

    def _compile(self, gm: Any, inputs: Any) -> Callable[..., Any]:
        if not self.is_armed:
            return gm.forward
        self.mark.touch()
        return self.compile(gm)

    def compile(self, gm: Any) -> Callable[..., Any]:
        raise NotImplementedError


class BackendRaises(GivenBackend):
    def compile(self, gm: Any) -> Callable[..., Any]:
        raise RuntimeError("planted in a backend")


class BackendRunFails(GivenBackend):
    """Overwrites every input and draws random numbers before it fails."""

    def compile(self, gm: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            torch.rand(3)
            with torch.no_grad():
                for value in args:
                    if isinstance(value, torch.Tensor):
                        value.detach().zero_()
            raise torch.OutOfMemoryError("planted in a first run")

        return run


class Miscompiles(GivenBackend):
    """A graph whose sines are cosines."""

    def compile(self, gm: Any) -> Callable[..., Any]:
        for node in gm.graph.nodes:
            if node.target is torch.sin:
                node.target = torch.cos
        gm.recompile()
        return gm.forward
