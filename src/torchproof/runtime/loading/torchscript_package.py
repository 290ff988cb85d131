"""Loads a TorchScript package: a traced model with its weights."""

from __future__ import annotations

import io
import warnings
from typing import Any

import torch

from torchproof.runtime.loading.deployed_model import DeployedModel
from torchproof.runtime.pack_format.contents import Contents

TORCHSCRIPT_FILE = "model.pt"


def load_package(contents: Contents) -> DeployedModel:
    """Returns the model as a callable; the caller has checked that it is trusted."""
    details = contents.manifest.details
    device = details["device"]
    if device == "cuda":
        device = f"cuda:{torch.cuda.current_device()}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)  # from torch 2.15 on
        jit: Any = torch.jit  # its stubs have no types
        model = jit.load(
            io.BytesIO(contents.read(TORCHSCRIPT_FILE)), map_location=device
        )
    return DeployedModel(details, lambda tensors: model(*tensors))
