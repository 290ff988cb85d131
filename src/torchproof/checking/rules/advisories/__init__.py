"""AD1xx: bugs of the installed torch that the observed graph can hit silently.

To add one, add a file with one class that derives from `Advisory`; it is found here.
"""

from __future__ import annotations

import importlib
import pkgutil

from torchproof.checking.rules.advisories.advisory import Advisory as Advisory


def _found() -> tuple[type[Advisory], ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Advisory)
        and value.__module__ == module.__name__
        and value is not Advisory
    )


ADVISORIES = _found()
