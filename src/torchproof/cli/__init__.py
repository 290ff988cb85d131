"""The command line: words of the user in, a call of `api`, text on stdout.

In: arguments. Out: an exit code. Start with `verbs.py`.
Imports `api`, `process`, `records` and `report`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.cli.verbs import main as main
else:
    __getattr__, __all__ = lazy_exports(__name__)
