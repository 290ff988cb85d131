"""The kinds of package that run without the model's code, and how each is opened."""

from __future__ import annotations

from collections.abc import Callable

from torchproof.loading import exported, traced
from torchproof.loading.deployed import Deployed
from torchproof.packs.contents import Contents

ARTIFACTS: dict[str, Callable[[Contents], Deployed]] = {
    "aoti": exported.opened,
    "torchscript": traced.opened,
}
