"""Packages: models that run without the model's Python code.

Takes an open pack that is trusted, returns a callable. A package of AOTInductor has
compiled code and weights.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchproof.runtime.explained import Explained
from torchproof.runtime.loading.pack_details import PackageDetails, read_details
from torchproof.runtime.pack_format.contents import Contents
from torchproof.torch_private import Unfit

PACKAGE_FILE = "model.pt2"
# Sizes that passed are not checked again; the limit bounds the memory for them.
_REMEMBERED = 1024

Run = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class PackageStatus:
    """What a loaded package is, and the calls that it takes; it never compiles."""

    artifact: str
    device: str
    takes: str
    torch: str | None  # that it was built with

    def __str__(self) -> str:
        built = f", built with torch {self.torch}" if self.torch else ""
        return (
            f"{self.artifact} package on {self.device}{built}: runs without the model's"
            f" Python code, compiles nothing\ntakes {self.takes}"
        )


class DeployedModel(Explained[PackageStatus]):
    """Takes the same calls as the model, for inference only.

    A call whose structure, dtypes, devices or sizes the package does not support raises
    `ValueError` with the difference.
    """

    def __init__(self, details: PackageDetails, run: Run) -> None:
        self.details = details
        self._checked: set[tuple[Any, ...]] = set()
        self._run = run

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            tensors = self.details.call.tensors_of(args, kwargs)
            self._assert_fits(tensors)
        except Unfit as error:
            raise ValueError(f"the pack refuses this call: {error}") from None
        specs = self.details.entrance.tensors
        used = [s.laid_out(t) for s, t in zip(specs, tensors, strict=True)]
        with torch.no_grad():
            outputs = list(self._run(used))
            for tensor, copy, spec in zip(tensors, used, specs, strict=True):
                if spec.written and copy.data_ptr() != tensor.data_ptr():
                    tensor.copy_(copy)
        return self.details.output.rebuild(outputs)

    def _assert_fits(self, tensors: list[torch.Tensor]) -> None:
        key = tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors)
        if key not in self._checked:
            self.details.entrance.assert_fits(tensors)
            if len(self._checked) < _REMEMBERED:
                self._checked.add(key)

    def status(self) -> PackageStatus:
        details = self.details
        return PackageStatus(
            artifact=details.artifact,
            device=details.device,
            takes=str(details.entrance),
            torch=details.place.torch,
        )

    def __repr__(self) -> str:
        inputs = ", ".join(
            f"{t.label}: {t.dtype}{list(t.sizes)}"
            for t in self.details.entrance.tensors
        )
        return f"<torchproof {self.details.artifact} package ({inputs})>"


def load_package(contents: Contents) -> DeployedModel:
    """The package as a callable; the caller has checked that it is trusted.

    The code runs on the current CUDA device, whichever device it was built on.
    """
    from torchproof.torch_private import export

    details = read_details(PackageDetails, contents)
    index = torch.cuda.current_device() if details.device == "cuda" else -1
    with tempfile.TemporaryDirectory(prefix="torchproof-") as folder:  # mode 0700
        file = Path(folder, PACKAGE_FILE)
        contents.copy(file.name, file)
        return DeployedModel(details, export.load_package(file, index))
