"""Packs: a failure as a self-contained repro, or a model with its compiled code.

In: a run with a failure, or a target. Out: a directory or archive that is complete or
absent. Start with `repro/__init__.py` and `deploy/__init__.py`.
Imports `records`, `process`, `targets`, `measure`, `strategies`, `runtime` and
`torch_private`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.packs import deploy as deploy
    from torchproof.packs import repro as repro
    from torchproof.packs.inspection import Inspection as Inspection
    from torchproof.packs.inspection import inspect as inspect
    from torchproof.packs.redaction import Redactor as Redactor
    from torchproof.packs.writing import PackResult as PackResult
    from torchproof.packs.writing import Stage as Stage
    from torchproof.packs.writing import archive as archive
    from torchproof.packs.writing import assert_placeable as assert_placeable
    from torchproof.packs.writing import folder as folder
    from torchproof.runtime import File as File
    from torchproof.runtime import Manifest as Manifest
    from torchproof.runtime import Refused as Refused
    from torchproof.runtime import Unverified as Unverified
    from torchproof.runtime import assert_trusted as assert_trusted
    from torchproof.runtime import is_pack as is_pack
    from torchproof.runtime import open_pack as open_pack
    from torchproof.runtime import read_key as read_key
else:
    __getattr__, __all__ = lazy_exports(__name__)
