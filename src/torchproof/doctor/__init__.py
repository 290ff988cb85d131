"""Examine this machine: what torchproof and torch.compile need, and what works.

In: nothing but the machine. Out: one `MachineCheck` for each thing that was tried.
Start with `examination.py`. Imports `process`, `records`, `report` and `torch_private`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.doctor.examination import examine as examine
else:
    __getattr__, __all__ = lazy_exports(__name__)
