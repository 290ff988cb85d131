"""An AOTInductor package: compiled code and weights, run without Dynamo."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from torchproof.runtime.loading.deployed_model import DeployedModel
from torchproof.runtime.pack_format.contents import Contents

AOTI_FILE = "model.pt2"


def load_package(contents: Contents) -> DeployedModel:
    """The package as a callable; the caller has seen to it that the pack is trusted.

    Its code runs on the current CUDA device, whichever it was built on.
    """
    from torchproof.torch_private import export

    details = contents.manifest.details
    device = torch.cuda.current_device() if details["device"] == "cuda" else -1
    folder = Path(tempfile.mkdtemp(prefix="torchproof-"))  # of this user alone
    try:
        contents.copy(AOTI_FILE, folder / AOTI_FILE)
        run = export.load_package(folder / AOTI_FILE, device)
    finally:
        shutil.rmtree(folder)
    return DeployedModel(details, run)
