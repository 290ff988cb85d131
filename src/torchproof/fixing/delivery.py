"""Delivers the verified fixes of a run, with `--write` or `--patch DIR`.

`--write` edits the user's own files. All of them are checked before the first is
written; a file that differs from what the proofs read is refused. Settings go into the
recipe of this directory. Everything is written completely or not at all.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchproof.fixing import fixed_recipe, patch_folder
from torchproof.fixing.edits import Misfit, overlay_of
from torchproof.fixing.source_text import SourceText, digest, read_source
from torchproof.records import (
    Fix,
    Run,
    UserError,
    cells,
    files,
    installed_torch,
    is_own,
    shown,
    store,
)
from torchproof.strategies import FILE

AnyPath = str | os.PathLike[str]


def assert_deliverable(*, write: bool, patch: AnyPath | None) -> None:
    """Fails before the work if the fixes could not be delivered."""
    if write and patch is not None:
        raise UserError("--write and --patch: deliver the fixes in one way at a time")
    if patch is not None:
        patch_folder.assert_free(Path(patch))


# Takes the fixes that are about to be written, and the folder of those that are
# patches; says why they must not be, or None.
Check = Callable[[Sequence[Fix], Path | None], str | None]


def deliver(
    run: Run,
    *,
    write: bool = False,
    patch: AnyPath | None = None,
    check: Check | None = None,
) -> Run:
    """Writes verified fixes; those that were written have the status `applied`.

    If they cannot be written, or the check has a reason, nothing is, and the run's
    `error` says why.
    """
    try:
        assert_deliverable(write=write, patch=patch)
        if patch is not None:
            return _patched(run, Path(patch), check)
        return _written(run, check) if write else run
    except UserError as error:
        return replace(run, error=str(error))


def deliver_saved(
    run: Run,
    *,
    write: bool = False,
    patch: AnyPath | None = None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    """Delivers the fixes of a saved run, without another proof; saves a new run.

    The proofs hold for the files and the torch that they ran with.
    """
    if run.verb != "fix" or run.ending != "finished":
        what = f"a run of {run.verb}" if run.verb != "fix" else "incomplete"
        raise UserError(f"{run.id} is {what}: run torchproof fix {run.target}")
    proved, here = str(run.environment.get("torch")), installed_torch()
    if proved.partition("+")[0] != here.partition("+")[0]:
        raise UserError(
            f"{run.id} was proved with torch {proved}, and {here} is installed: run"
            f" torchproof fix {run.target}"
        )
    assert_deliverable(write=write, patch=patch)
    store.assert_writable(save_in)
    now = datetime.datetime.now().isoformat(timespec="seconds")
    run = replace(run, command=command, started=now, error=None)
    return store.save(deliver(run, write=write, patch=patch), save_in)


def _written(run: Run, check: Check | None) -> Run:
    in_cells = [fix for fix in _verified(run) if _cells_of(fix)]
    own = [
        fix for fix in _verified(run) if _owners(fix) == {True} and fix not in in_cells
    ]
    places = {fix: shown(fix.file or "") for fix in own}
    changes = _changes(own, run)
    settings = _settings(run)
    reasons = {fix: f"{_cells_of(fix)[0]} is a cell of a notebook" for fix in in_cells}
    for fix in _verified(run):
        if not fix.replacements and fix not in settings:
            what = "marks" if fix.marks else "settings"
            reasons[fix] = f"no file has a place for {what}: paste the lines"
    try:
        changes += _recipe_change(run, settings)
    except UserError as error:  # the settings can still be pasted
        reasons |= dict.fromkeys(settings, f"{FILE} is left as it is: {error}")
    else:
        places |= dict.fromkeys(settings, FILE)
    # All fixes together have been proved already.
    if check and places and len(places) < len(_verified(run)):
        _assert_proved(check(list(places), None))
    write_all(changes)
    return _with_places(run, places, reasons)


def _cells_of(fix: Fix) -> list[str]:
    """The cells of a notebook that a fix edits, which only their user can replace."""
    names = (cells.name_in(change.file) for change in fix.replacements)
    return [name for name in dict.fromkeys(names) if name]


def cell_texts(run: Run) -> dict[str, tuple[str, str]]:
    """The cells that verified fixes edit, by path: the text, and with all edits."""
    texts = edited(_verified(run), run) if any(map(_cells_of, _verified(run))) else {}
    return {
        file: (source.text, text)
        for file, (source, text) in texts.items()
        if cells.name_in(file)
    }


def _assert_proved(why: str | None) -> None:
    if why is not None:
        raise UserError(f"nothing was written: with only these fixes, {why}")


def _settings(run: Run) -> list[Fix]:
    """The fixes that a recipe can store: settings alone, for a whole model."""
    if run.options.get("as_written"):  # the target itself calls torch.compile
        return []
    return [
        fix
        for fix in _verified(run)
        if fix.settings and not fix.replacements and not fix.marks
    ]


def _recipe_change(run: Run, settings: Sequence[Fix]) -> list[Change]:
    if not settings:
        return []
    path = os.path.abspath(FILE)
    if not files.is_taken(path):
        return [Change(path, None, fixed_recipe.new_recipe(run, settings).encode())]
    text = read_source(path).text
    new = fixed_recipe.extended(text, run, settings)
    mode = stat.S_IMODE(os.stat(_writable(path)).st_mode)
    return [Change(os.path.realpath(path), text.encode(), new.encode(), mode)]


def _patched(run: Run, folder: Path, check: Check | None) -> Run:
    foreign = [fix for fix in _verified(run) if _owners(fix) == {False}]
    places = {fix: str(folder) for fix in _verified(run) if not fix.replacements}
    reasons: dict[Fix, str] = {}
    modules = []
    for file, (source, text) in edited(foreign, run).items():
        fixes = tuple(f for f in foreign if any(r.file == file for r in f.replacements))
        edit = patch_folder.LibraryEdit(file, source.text, text, fixes)
        try:
            module = patch_folder.patch_module(edit)
        except patch_folder.NotPatchable as error:
            reasons |= dict.fromkeys(fixes, f"it cannot be a patch: {error}")
        else:
            modules.append(module)
            places |= {fix: str(folder / module[0].file) for fix in fixes}
    places = {fix: place for fix, place in places.items() if fix not in reasons}
    if places:
        settings = _settings(run)
        recipe = fixed_recipe.new_recipe(run, settings) if settings else ""
        texts = patch_folder.texts(folder.name, run, modules)
        texts |= {FILE: recipe} if recipe else {}
        if check:
            with tempfile.TemporaryDirectory() as temporary:
                trial = Path(temporary, folder.name)
                patch_folder.place(trial, texts)
                _assert_proved(check(list(places), trial))
        patch_folder.place(folder, texts)
    return _with_places(run, places, reasons)


def _owners(fix: Fix) -> set[bool]:
    """Whether the files that a fix edits are the user's own."""
    return {is_own(each.file) for each in fix.replacements}


def _verified(run: Run) -> list[Fix]:
    return [fix for fix in run.fixes if fix.status == "verified"]


def _with_places(
    run: Run, places: Mapping[Fix, str], reasons: Mapping[Fix, str] | None = None
) -> Run:
    """The run with the fixes that were written, and why others were not."""
    fixes = [
        replace(fix, status="applied", written_to=places[fix])
        if fix in places
        else replace(fix, why=(reasons or {}).get(fix, fix.why))
        for fix in run.fixes
    ]
    return replace(run, fixes=tuple(fixes))


def edited(fixes: Sequence[Fix], run: Run) -> dict[str, tuple[SourceText, str]]:
    """Each file that the fixes edit: as it is, and the text with all edits."""
    known = run.fixing.sources if run.fixing else {}
    sources: dict[str, SourceText] = {}
    for file in dict.fromkeys(r.file for fix in fixes for r in fix.replacements):
        if not file.endswith(".py") and not cells.name_in(file):
            raise UserError(f"{shown(file)} is no Python file: nothing was written")
        sources[file] = read_source(file)
        if digest(sources[file].text) != known.get(file):
            raise UserError(
                f"{shown(file)} has changed since it was read: nothing was written;"
                " run fix again"
            )
    try:
        texts = overlay_of(fixes, {f: s.text for f, s in sources.items()}).texts
    except Misfit as error:
        raise UserError(f"the edits do not fit together: {error}") from None
    proved = run.fixing.edited if run.fixing else {}
    for file, text in texts.items():
        if digest(text) != proved.get(file):
            raise UserError(
                f"the edits of {shown(file)} do not give the text that was proved:"
                " nothing was written"
            )
    return {file: (sources[file], text) for file, text in texts.items()}


# -- writing ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A file and its new content; `old` is None if there is no such file yet."""

    path: str
    old: bytes | None
    new: bytes
    mode: int = 0o644


def _changes(fixes: Sequence[Fix], run: Run) -> list[Change]:
    changes = []
    for file, (source, text) in edited(fixes, run).items():
        path = _writable(file)
        try:
            new = source.encoded(text)
        except UnicodeEncodeError:
            raise UserError(
                f"{shown(file)} is in {source.encoding}, which lacks a character of the"
                " edit"
            ) from None
        mode = stat.S_IMODE(os.stat(path).st_mode)
        changes.append(Change(path, source.encoded(source.text), new, mode))
    return changes


def _writable(file: str) -> str:
    """The path to replace; raises `UserError` if the file must not be written."""
    path = os.path.realpath(file)
    here = os.path.realpath(os.getcwd()) + os.sep
    if os.path.islink(file) and not path.startswith(here):
        raise UserError(
            f"{shown(file)} is a link to {path}, outside of this directory: nothing"
            " was written"
        )
    # The mode decides even for root, who may write everything.
    if not os.stat(path).st_mode & 0o222 or not os.access(path, os.W_OK):
        raise UserError(f"{shown(file)} is read-only: nothing was written")
    folder = os.path.dirname(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"the directory {folder} is read-only: nothing was written")
    return path


def write_all(changes: Sequence[Change]) -> None:
    """Writes all files or none: each is replaced at once, and put back on an error."""
    staged: list[tuple[Change, str]] = []
    undo: list[Callable[[], None]] = []
    try:
        for change in changes:
            temporary = _staged(change.path, change.new, change.mode)
            staged.append((change, temporary))
        for change, temporary in staged:
            if change.old is None:
                os.link(temporary, change.path)  # never replaces a file
                undo.append(functools.partial(os.unlink, change.path))
            else:
                os.replace(temporary, change.path)
                undo.append(functools.partial(_restore, change))
    except BaseException as error:
        for action in reversed(undo):
            with contextlib.suppress(OSError):
                action()
        if isinstance(error, OSError):
            why = error.strerror or str(error)
            raise UserError(f"{error.filename}: {why}: nothing was written") from None
        raise
    finally:
        for _, temporary in staged:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _staged(path: str, content: bytes, mode: int) -> str:
    """A complete file beside `path`, under a temporary name."""
    handle, name = tempfile.mkstemp(prefix=".torchproof-", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        with contextlib.suppress(OSError):
            status = os.stat(path)
            os.chown(name, status.st_uid, status.st_gid)
    except BaseException:
        os.unlink(name)
        raise
    return name


def _restore(change: Change) -> None:
    assert change.old is not None
    os.replace(_staged(change.path, change.old, change.mode), change.path)
