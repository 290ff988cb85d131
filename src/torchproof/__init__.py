"""torchproof makes torch.compile dependable."""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torchproof.api import bench as bench
    from torchproof.api import check as check
    from torchproof.api import compare as compare
    from torchproof.api import pack as pack
    from torchproof.api import tune as tune
    from torchproof.records import Finding as Finding
    from torchproof.records import Run as Run
    from torchproof.runtime import PackRefused as PackRefused
    from torchproof.runtime import compile as compile
    from torchproof.runtime import graph as graph
    from torchproof.runtime import load as load
    from torchproof.runtime import plan as plan
    from torchproof.runtime import retry as retry
    from torchproof.runtime import status as status
    from torchproof.runtime import step as step
else:
    __getattr__, __all__ = lazy_exports(__name__)
