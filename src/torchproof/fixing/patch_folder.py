"""Writes fixes in libraries as a folder that `torchproof.apply_patches` installs.

Only functions can be patched, so an edit may change functions of modules and classes,
and add functions and imports. Another edit is refused with the reason.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.metadata
import json
import os
import shutil
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchproof import __version__
from torchproof.records import Fix, Mark, Run, Setting, UserError, blame, files
from torchproof.runtime import patch_files

_HOME = Path(__file__).parents[2]
_WIDTH = 80


class NotPatchable(Exception):
    """Why the edits of a file cannot be a patch."""


@dataclass(frozen=True)
class LibraryEdit:
    """A file of a library before and after its edits, and the fixes behind them."""

    file: str
    before: str
    after: str
    fixes: tuple[Fix, ...]


@dataclass(frozen=True)
class _Changed:
    """The functions and imports that differ between two texts of a module."""

    functions: tuple[patch_files.Definition, ...]  # as they are after the edits
    digests: dict[str, str]
    imports: tuple[str, ...]


def assert_free(folder: Path) -> None:
    """Fails if the folder could not be written."""
    parent = folder.absolute().parent
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"--patch {folder}: {parent} is not a writable directory")
    try:
        taken = files.is_taken(folder)
    except OSError as error:
        raise UserError(f"--patch {folder}: {error.strerror}") from None
    if taken and not (
        folder.is_dir() and not folder.is_symlink() and not os.listdir(folder)
    ):
        raise UserError(f"{folder} exists: remove it or choose another name")


# -- one module ------------------------------------------------------------------------


def patch_module(edit: LibraryEdit) -> tuple[patch_files.PatchModule, str]:
    """The entry of the manifest, and the text of the file."""
    module = _module(edit.file)
    changed = _changed(edit.before, edit.after)
    entry = patch_files.PatchModule(
        file=f"{module.replace('.', '_')}.py",
        module=module,
        package=_distribution(module.partition(".")[0]),
        functions=changed.digests,
        imports=changed.imports,
    )
    return entry, _text(entry, changed, edit.fixes)


def _module(file: str) -> str:
    real = Path(os.path.realpath(file))
    if real.is_relative_to(_HOME):
        words = real.relative_to(_HOME).with_suffix("").parts
        return ".".join(words[:-1] if words[-1] == "__init__" else words)
    module = blame.module_of(file) or blame.module_of(str(real))
    if module is None:
        raise NotPatchable("it is not a module of an installed package")
    return module


def _distribution(package: str) -> str:
    """`transformers 5.22.0`; without a version if it is unknown."""
    if package == "torchproof":
        return f"torchproof {__version__}"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return f"{package} {importlib.metadata.version(package)}"
    for name in _distributions().get(package, ()):
        return f"{name} {importlib.metadata.version(name)}"
    return package


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """By package; it reads the list of files of everything that is installed."""
    return importlib.metadata.packages_distributions()


def _changed(before: str, after: str) -> _Changed:
    old, new = patch_files.definitions(before), patch_files.definitions(after)
    if lost := [name for name in old if name not in new]:
        raise NotPatchable(f"the edit removes {lost[0]}")
    if _rest(before, old) != _rest(after, new):
        raise NotPatchable(
            "the edit changes more than functions that are defined once, and imports"
        )
    digests = {
        name: old[name].digest if name in old else ""
        for name, each in new.items()
        if name not in old or old[name].digest != each.digest
    }
    functions = tuple(new[name] for name in digests)
    known = {ast.dump(node) for node in _imports(before)}
    added = [node for node in _imports(after) if ast.dump(node) not in known]
    return _Changed(functions, digests, tuple(map(ast.unparse, added)))


def _imports(text: str) -> list[ast.stmt]:
    statements = ast.parse(text).body
    return [s for s in statements if isinstance(s, ast.Import | ast.ImportFrom)]


def _rest(text: str, functions: dict[str, patch_files.Definition]) -> list[str]:
    """The lines outside of functions and imports, without empty ones."""
    covered: set[int] = set()
    for each in functions.values():
        covered.update(range(each.first, each.last + 1))
    for node in _imports(text):
        covered.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = text.replace("\r\n", "\n").split("\n")
    return [
        line
        for number, line in enumerate(lines, 1)
        if number not in covered and line.strip()
    ]


# -- the text of a module --------------------------------------------------------------


def _text(
    entry: patch_files.PatchModule, changed: _Changed, fixes: Sequence[Fix]
) -> str:
    head = _docstring(entry, fixes)
    imports = "".join(f"{statement}\n" for statement in entry.imports)
    body = "\n".join(_body(changed, entry)).strip("\n")
    return f"{head}\n# ruff: noqa\n\n{imports}\n\n{body}\n"


def _docstring(entry: patch_files.PatchModule, fixes: Sequence[Fix]) -> str:
    about = (
        "torchproof.apply_patches installs these functions; this file itself cannot be"
        " imported. A function whose installed source differs from the one that it was"
        " made for is left alone."
    )
    parts = [f"Functions of {entry.module}, from {entry.package}, with fixes."]
    parts.append(textwrap.fill(about, _WIDTH))
    for fix in fixes:
        lines = [f"{', '.join(fix.codes)}: {fix.title} ({fix.tier})"]
        if fix.function:
            lines.append(f"    in {fix.function}")
        if fix.receipt:
            proved = f"proved: {fix.receipt.text}"
            lines.append(textwrap.indent(textwrap.fill(proved, _WIDTH - 8), "    "))
        parts.append("\n".join(lines))
    return _quoted("\n\n".join(parts))


def _quoted(text: str) -> str:
    """A docstring, whatever the text has in it."""
    text = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""{text}\n"""'


def _body(changed: _Changed, entry: patch_files.PatchModule) -> Iterator[str]:
    """The functions in classes like theirs; their lines are unchanged."""
    before: tuple[ast.ClassDef, ...] = ()
    for each in changed.functions:
        chain = each.classes
        shared = [a is b for a, b in zip(chain, before, strict=False)]
        start = shared.index(False) if False in shared else len(shared)
        if not start or not chain:
            yield "\n"
            outermost = chain[0] if chain else each.node
            if outermost.col_offset:
                yield "if True:  # indented as in the library"
        for node in chain[start:]:
            yield f"{' ' * node.col_offset}class {node.name}:"
        yield from _replaced(each, entry)
        yield from each.lines
        before = chain


def _replaced(
    each: patch_files.Definition, entry: patch_files.PatchModule
) -> Iterator[str]:
    indent = " " * each.node.col_offset
    digest = entry.functions[each.name]
    yield ""
    yield f"{indent}# {entry.module}: {each.name}"
    yield f"{indent}# {f'replaces sha256 {digest}' if digest else 'is new'}"


# -- the folder ------------------------------------------------------------------------


def texts(
    name: str, run: Run, modules: Sequence[tuple[patch_files.PatchModule, str]]
) -> dict[str, str]:
    """The files of a folder of this name, with all settings of the run."""
    fixes = [fix for fix in run.fixes if fix.status == "verified"]
    settings = tuple(dict.fromkeys(s for fix in fixes for s in fix.settings))
    marks = tuple(dict.fromkeys(m for fix in fixes for m in fix.marks))
    manifest = patch_files.PatchManifest(
        schema=patch_files.SCHEMA,
        torchproof=__version__,
        target=run.target,
        command=run.command,
        environment={
            name: str(run.environment[name])
            for name in ("torch", "python")
            if run.environment.get(name)
        },
        modules=tuple(entry for entry, _ in modules),
        settings=settings,
        marks=marks,
    )
    return {
        **{entry.file: text for entry, text in modules},
        "__init__.py": _package(name, run.target, settings, marks),
        patch_files.MANIFEST: json.dumps(manifest.to_json(), indent=1) + "\n",
    }


def place(folder: Path, files_by_name: Mapping[str, str]) -> None:
    """The folder appears with all of its files, or not at all."""
    assert_free(folder)
    target = folder.absolute()
    work = Path(tempfile.mkdtemp(prefix=".torchproof-", dir=target.parent))
    try:
        work.chmod(0o755)
        for name, text in files_by_name.items():
            (work / name).write_text(text, "utf-8", "backslashreplace")
        os.rename(work, target)  # an empty directory is replaced
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"--patch {folder}: {why}: nothing was written") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _package(
    name: str, target: str, settings: Sequence[Setting], marks: Sequence[Mark]
) -> str:
    """The text of `__init__.py`: how to install the patches, and the settings."""
    about = _quoted(
        f"Fixes that torchproof proved for {target}.\n\nBefore the model is compiled:\n"
        f"\n    import {name if name.isidentifier() else 'patches'}\n"
        f"    {name if name.isidentifier() else 'patches'}.install()"
    )
    compile_arguments = [s for s in settings if s.name.startswith("compile.")]
    others = [s for s in settings if s not in compile_arguments]
    lines = list(dict.fromkeys(line for s in others for line in s.lines))
    arguments = ", ".join(s.code for s in compile_arguments)
    parts = [
        f"{about}\n\nfrom pathlib import Path\n\nimport torchproof\n",
        f"# Arguments for torch.compile.\nCOMPILE_ARGUMENTS = dict({arguments})\n",
        _function("install", "Replaces the functions, and applies the settings.", _ALL),
        _function("settings", "Settings of the compiler.", _torch(lines)),
    ]
    if marks:
        names = dict.fromkeys(m.argument.partition("[")[0] for m in marks)
        words = "Marks sizes of the arguments; call it before each call of the model."
        heads = dict.fromkeys(n.partition(".")[0] for n in names)
        given = f"mark({', '.join(heads)})"
        parts.append(_function(given, words, _torch([m.code for m in marks])))
    return "\n\n".join(parts)


_ALL = ("settings()", "return torchproof.apply_patches(Path(__file__).parent)")


def _torch(lines: Sequence[str]) -> Sequence[str]:
    return ["import torch", "", *lines] if lines else []


def _function(signature: str, about: str, lines: Sequence[str]) -> str:
    head = signature if signature.endswith(")") else f"{signature}()"
    body = textwrap.indent("\n".join(lines), "    ")
    text = f'def {head}:\n    """{about}"""\n{body}'
    return f"{text.rstrip()}\n"
