"""Edits that cure findings, each proved before it is shown.

In: a target. Out: a run whose fixes have a diff and a receipt each. Rules name the
rewrites and settings to try, `rewrites` drafts them, `proof.py` tries edits in a
process, and `search.py` repeats that until nothing helps; `delivery.py` writes the
fixes. `drafts.py` drafts edits for a check, without a proof. Start with `fixer.py`.
Imports `records`, `process`, `torch_private`, `targets`, `strategies`, `observe`,
`runtime`, `measure` and `checking`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.fixing import rewrites as rewrites
    from torchproof.fixing.delivery import cell_texts as cell_texts
    from torchproof.fixing.delivery import deliver_saved as deliver_saved
    from torchproof.fixing.drafts import drafted as drafted
    from torchproof.fixing.fixer import fix as fix
    from torchproof.records.options import FixOptions as FixOptions
else:
    __getattr__, __all__ = lazy_exports(__name__)
