"""AD1xx: bugs of the installed torch that the observed graph can hit silently.

To add one, add a file with one class that derives from `Advisory`; it is found here.
"""

from __future__ import annotations

import importlib
import pkgutil

from torchproof.checking.rules.advisories.advisory import Advisory as Advisory
from torchproof.checking.rules.rule import rules_in

ADVISORIES = tuple(
    rule
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__))
    for rule in rules_in(importlib.import_module(f"{__name__}.{name}"))
    if issubclass(rule, Advisory)
)
