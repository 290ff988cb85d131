"""The kinds of package that run without the model's code, and how each is opened."""

from __future__ import annotations

from collections.abc import Callable

from torchproof.runtime.loading import aoti_package, torchscript_package
from torchproof.runtime.loading.deployed_model import Deployed
from torchproof.runtime.pack_format.contents import Contents

ARTIFACTS: dict[str, Callable[[Contents], Deployed]] = {
    "aoti": aoti_package.opened,
    "torchscript": torchscript_package.opened,
}
