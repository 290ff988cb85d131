"""What `torchproof show` prints beside runs: packs and caches."""

from __future__ import annotations

import argparse

from torchproof.api import inspect, read_key
from torchproof.cli import output
from torchproof.records import UserError
from torchproof.report import cache_folders
from torchproof.report import cache_listing as of_caches
from torchproof.report import pack as of_pack


def pack(options: argparse.Namespace) -> int:
    """A pack, of which nothing is run; exit code 1 where it is not intact."""
    if options.format not in of_pack.FORMATS:
        wanted = ", ".join(of_pack.FORMATS)
        raise UserError(f"a pack is shown as {wanted}, not as {options.format}")
    found = inspect(options.run, read_key())
    text = of_pack.render(found, options.format, width=output.width(options))
    output.write(text, options)
    return int(not found.is_intact)


def caches(options: argparse.Namespace) -> int:
    """Where compiled code is cached; what `--clear` names is gone afterwards."""
    if not options.caches:
        raise UserError("--clear goes with --caches")
    if options.format not in ("text", "json"):
        raise UserError(f"caches are shown as text or json, not as {options.format}")
    if options.run is not None or options.list:
        raise UserError("--caches stands alone: it shows no run")
    found = cache_folders.listing()
    done = cache_folders.cleared(found, options.clear) if options.clear else None
    width = output.width(options)
    output.write(of_caches.render(found, done, options.format, width=width), options)
    return 0
