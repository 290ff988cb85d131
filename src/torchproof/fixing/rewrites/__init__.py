"""Source rewrites by name. A rule lists in `rewrites` those that may cure its findings.

Each takes a `Site` and returns a `Draft`, or raises `Refused`.
"""

from __future__ import annotations

import importlib

from torchproof.fixing.rewrites.site import Draft as Draft
from torchproof.fixing.rewrites.site import File as File
from torchproof.fixing.rewrites.site import Refused as Refused
from torchproof.fixing.rewrites.site import Rewrite as Rewrite
from torchproof.fixing.rewrites.site import Site as Site
from torchproof.fixing.rewrites.site import parsed as parsed


def named(name: str) -> Rewrite:
    """A rewrite by its name, `validation.raise_if`: a module here and a function."""
    module, _, function = name.partition(".")
    package = importlib.import_module(f"torchproof.fixing.rewrites.{module}")
    rewrite: Rewrite = getattr(package, function)
    return rewrite
