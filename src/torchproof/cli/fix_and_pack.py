"""The verbs that hand something over: `fix` edits, `pack` a folder or archive."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchproof.cli import exit_codes, output
from torchproof.cli.commands import Fix, Pack, SignedDeploy
from torchproof.records import Run, UserError, store
from torchproof.records.option import options_of, values_of
from torchproof.records.options import DeployOptions, FixOptions, Options, ReproOptions

if TYPE_CHECKING:
    from torchproof.api import Target


def fix(options: Fix) -> int:
    from torchproof import api

    output.assert_writable(options.output)
    if saved := _saved_run(options.target):
        if not (options.write or options.patch):
            raise UserError(
                f"{saved.id} is a saved run: add --write or --patch DIR to apply its"
                f" fixes; torchproof show {saved.id} prints it"
            )
        run = api.deliver_saved(
            saved, write=options.write, patch=options.patch, command=options.line
        )
        return _show_fixes(run, options)
    with output.progress(options) as progress:
        run = output.run_of(
            api.fix,
            api.parse(options.target, options.script),
            **values_of(Options, options),
            **values_of(FixOptions, options),
            progress=progress,
            command=options.line,
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


def _show_fixes(run: Run, options: Fix) -> int:
    output.show(run, options)
    if interrupted := exit_codes.interrupted_code(run, options):
        return interrupted
    waiting = [fix for fix in run.fixes if fix.status == "verified"]
    if waiting and (options.write or options.patch):
        other = (
            "--patch DIR is for packages" if options.write else "--write is for files"
        )
        whys = "; ".join(dict.fromkeys(fix.why or other for fix in waiting))
        output.note(f"torchproof: verified and not applied: {len(waiting)} ({whys})")
    return int(bool(waiting))


def pack(options: Pack) -> int:
    from torchproof import api

    pack_options = _pack_options(options)
    try:
        with output.progress(options) as progress:
            result = api.pack(
                _pack_source(options),
                Options(**values_of(Options, options)),
                purpose=options.purpose,
                dest=options.dest,
                overwrite=options.overwrite,
                pack_options=pack_options,
                progress=progress,
                command=options.line,
            )
    except api.Unverified as error:
        output.note(f"torchproof: no pack was written: {error}")
        return 1
    output.show_pack(result, options)
    return 0


def _pack_source(options: Pack) -> Target | Run:
    """A saved run if `what` names one, otherwise a target."""
    from torchproof import api

    path = Path(options.what)
    if options.purpose == "repro":
        if path.suffix == ".json" or os.path.isfile(path / "run.json"):
            return store.load(options.what)
        with contextlib.suppress(UserError):
            return store.load(options.what)
    return api.parse(options.what, options.script)


def _pack_options(options: Pack) -> ReproOptions | DeployOptions | None:
    """The options of the purpose; flags of the other one would have no effect."""
    from torchproof import api

    kinds: dict[str, type[Any]] = {"repro": ReproOptions, "deploy": SignedDeploy}
    fit = {each.flag for each in options_of(kinds.pop(options.purpose))}
    for each in options_of(*kinds.values()):
        if each.flag in options.flags and each.flag not in fit:
            raise UserError(f"pack --for {options.purpose} does not take {each.flag}")
    deploy = options.deploy
    if options.purpose == "repro" or deploy is None:
        return options.repro
    if deploy.recipe and deploy.strategy:
        raise UserError("--recipe and --strategy exclude each other")
    key = api.read_key(deploy.key_file, environ={})
    return DeployOptions(**{**values_of(DeployOptions, deploy), "key": key})
