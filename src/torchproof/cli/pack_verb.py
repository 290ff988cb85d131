"""The verb `pack`."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchproof.cli import flags, output
from torchproof.cli.pack_flags import assert_fit
from torchproof.cli.run_options import run_options
from torchproof.records import Run, UserError, store

if TYPE_CHECKING:
    from torchproof.api import Target


def pack(options: argparse.Namespace) -> int:
    """Make something that others can run: a failure, or a model that starts warm."""
    from torchproof import api

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
    except api.Unverified as error:
        output.note(f"torchproof: no pack was made: {error}")
        return 1
    output.show_pack(made, options)
    return 0


def _packed(options: argparse.Namespace) -> Target | Run:
    """A saved run, or else a target: what names a run is no target."""
    from torchproof.api import parse

    path = Path(options.what)
    if options.purpose == "repro":
        if path.suffix == ".json" or os.path.isfile(path / "run.json"):
            return store.load(options.what)
        with contextlib.suppress(UserError):
            return store.load(options.what)
    return parse(options.what, options.script)


def _asked_of_pack(options: argparse.Namespace) -> Any:
    from torchproof import api

    if options.purpose == "repro":
        given: dict[str, Any] = {"select": tuple(flags.names(options.select or ""))}
        given |= {"minify": options.minify}
        given |= {"include": frozenset(flags.names(options.include or ""))}
        if options.budget:
            given["budget_s"] = options.budget
        return api.ReproOptions(**given)
    return api.DeployOptions(
        recipe=options.recipe,
        strategy=options.strategy,
        artifact=options.artifact or "caches",
        key=api.read_key(options.key),
    )
