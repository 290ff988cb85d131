"""The verbs that hand something over: `fix` edits, `pack` a folder or archive."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchproof.cli import exit_codes, flags, output
from torchproof.cli.pack_flags import assert_fit
from torchproof.records import Run, UserError, store

if TYPE_CHECKING:
    from torchproof.api import Target


def fix(options: argparse.Namespace) -> int:
    """Find edits that cure findings, prove them, and show them as a diff."""
    from torchproof import api

    output.assert_writable(options.output)
    if saved := _saved_run(options.target):
        where = {"write": options.write, "patch": options.patch}
        if not any(where.values()):
            raise UserError(
                f"{saved.id} is a saved run: add --write or --patch DIR to apply its"
                f" fixes; torchproof show {saved.id} prints it"
            )
        run = api.deliver_saved(saved, **where, command=options.command)
        return _show_fixes(run, options)
    fix_options = api.FixOptions(
        effort=options.effort,
        unsafe=options.unsafe,
        select=tuple(flags.names(options.select)),
        write=options.write,
        patch=options.patch,
    )
    with output.progress(options) as progress:
        run = output.run_of(
            api.fix,
            api.parse(options.target, options.script),
            flags.run_options(options),
            fix_options=fix_options,
            progress=progress,
            command=options.command,
        )
    return _show_fixes(run, options)


def _saved_run(text: str) -> Run | None:
    """The saved run that a word names; None if it is a target."""
    if ":" in text or (os.path.exists(text) and not text.endswith(".json")):
        return None
    try:
        return store.load(text)
    except UserError:
        return None


def _show_fixes(run: Run, options: argparse.Namespace) -> int:
    output.show(run, options)
    failed = exit_codes.failed_code(run, options)
    waiting = [fix for fix in run.fixes if fix.status == "verified"]
    if failed is not None:
        return failed
    if waiting and (options.write or options.patch):
        other = (
            "--patch DIR is for packages" if options.write else "--write is for files"
        )
        whys = "; ".join(dict.fromkeys(fix.why or other for fix in waiting))
        output.note(f"torchproof: verified and not applied: {len(waiting)} ({whys})")
    return int(bool(waiting))


def pack(options: argparse.Namespace) -> int:
    """Write a self-contained repro of a failure, or a model with its compiled code."""
    from torchproof import api

    assert_fit(options)
    try:
        with output.progress(options) as progress:
            result = api.pack(
                _pack_source(options),
                flags.run_options(options),
                purpose=options.purpose,
                dest=options.dest,
                overwrite=options.overwrite,
                pack_options=_pack_options(options),
                effort=options.effort or "normal",
                progress=progress,
                command=options.command,
            )
    except api.Unverified as error:
        output.note(f"torchproof: no pack was written: {error}")
        return 1
    output.show_pack(result, options)
    return 0


def _pack_source(options: argparse.Namespace) -> Target | Run:
    """A saved run if `what` names one, otherwise a target."""
    from torchproof import api

    path = Path(options.what)
    if options.purpose == "repro":
        if path.suffix == ".json" or os.path.isfile(path / "run.json"):
            return store.load(options.what)
        with contextlib.suppress(UserError):
            return store.load(options.what)
    return api.parse(options.what, options.script)


def _pack_options(options: argparse.Namespace) -> Any:
    from torchproof import api

    if options.purpose == "repro":
        settings: dict[str, Any] = {"select": tuple(flags.names(options.select or ""))}
        settings |= {"minify": options.minify}
        settings |= {"include": frozenset(flags.names(options.include or ""))}
        if options.budget:
            settings["budget_s"] = options.budget
        return api.ReproOptions(**settings)
    return api.DeployOptions(
        recipe=options.recipe,
        strategy=options.strategy,
        artifact=options.artifact or "caches",
        key=api.read_key(options.key, environ={}),
        ranks=options.ranks,
        wrap=options.wrap,
    )
