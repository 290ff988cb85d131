"""The package formats that run without the model's code, with their loaders."""

from __future__ import annotations

from collections.abc import Callable

from torchproof.runtime.loading import aoti_package, torchscript_package
from torchproof.runtime.loading.deployed_model import DeployedModel
from torchproof.runtime.pack_format.contents import Contents

ARTIFACTS: dict[str, Callable[[Contents], DeployedModel]] = {
    "aoti": aoti_package.load_package,
    "torchscript": torchscript_package.load_package,
}
