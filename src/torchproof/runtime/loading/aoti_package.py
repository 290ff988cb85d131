"""Loads an AOTInductor package: compiled code and weights that run without Dynamo."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from torchproof.runtime.loading.deployed_model import DeployedModel
from torchproof.runtime.pack_format.contents import Contents

AOTI_FILE = "model.pt2"


def load_package(contents: Contents) -> DeployedModel:
    """Returns the package as a callable; the caller has checked that it is trusted.

    The code runs on the current CUDA device, whichever device it was built on.
    """
    from torchproof.torch_private import export

    details = contents.manifest.details
    device = torch.cuda.current_device() if details["device"] == "cuda" else -1
    folder = Path(tempfile.mkdtemp(prefix="torchproof-"))  # mode 0700
    try:
        contents.copy(AOTI_FILE, folder / AOTI_FILE)
        run = export.load_package(folder / AOTI_FILE, device)
    finally:
        shutil.rmtree(folder)
    return DeployedModel(details, run)
