"""The verb `pack`."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchproof import flags, output, store
from torchproof.cli.running import run_options
from torchproof.flags.packs import assert_fit
from torchproof.records import Run, UserError

if TYPE_CHECKING:
    from torchproof.target import Target


def pack(options: argparse.Namespace) -> int:
    """Make something that others can run: a failure, or a model that starts warm."""
    from torchproof import api, packs

    assert_fit(options)
    try:
        with output.progress(options) as progress:
            made = api.pack(
                _packed(options),
                run_options(options),
                purpose=options.purpose,
                dest=options.dest,
                overwrite=options.overwrite,
                asked=_asked_of_pack(options),
                effort=options.effort or "normal",
                progress=progress,
                command=options.command,
            )
    except packs.Unverified as error:
        output.note(f"torchproof: no pack was made: {error}")
        return 1
    output.show_pack(made, options)
    return 0


def _packed(options: argparse.Namespace) -> Target | Run:
    """A saved run, or else a target: what names a run is no target."""
    from torchproof.target import parse

    path = Path(options.what)
    if options.purpose == "repro":
        if path.suffix == ".json" or os.path.isfile(path / "run.json"):
            return store.load(options.what)
        with contextlib.suppress(UserError):
            return store.load(options.what)
    return parse(options.what, options.script)


def _asked_of_pack(options: argparse.Namespace) -> Any:
    from torchproof import deploy, packs, repro

    if options.purpose == "repro":
        given: dict[str, Any] = {"select": tuple(flags.names(options.select or ""))}
        given |= {"minify": options.minify}
        given |= {"include": frozenset(flags.names(options.include or ""))}
        if options.budget:
            given["budget_s"] = options.budget
        return repro.Asked(**given)
    return deploy.Asked(
        recipe=options.recipe,
        strategy=options.strategy,
        artifact=options.artifact or "caches",
        key=packs.read_key(options.key),
    )
