"""Live objects as targets: a model or function of this process, and its calls.

`sent` writes them into a folder that only this user can enter, with what a child needs
of the main program and of the cells of a notebook. A child loads them anew for every
run, so the objects of the user stay as they are. What cannot be pickled stays in this
process: `why_not_sent` says why, and `here` has it for the check that needs no child.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import difflib
import functools
import io
import linecache
import os
import pickle
import re
import sys
import tempfile
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchproof import torch_private
from torchproof.process import main_definitions
from torchproof.records import Frame, UserError, cells, one_line, whose
from torchproof.records.mappings import Namespace, TorchConfig
from torchproof.targets import overlay
from torchproof.targets.introspect import code_of, name_of, stack
from torchproof.targets.live_calls import calls_of
from torchproof.targets.search_path import search_first
from torchproof.targets.target import Loaded, Target, raised

_OBJECTS, _MANIFEST = "objects.pt", "manifest.pickle"
_PROTOCOL = 2  # as `torch.save`
# Far from the lines of a cell, so that no diff shows them.
IMPORTS_BELOW = "\n\n\n\n# Imports of other cells.\n"
_UNKNOWN_NAME = re.compile(r"NameError: name '(\w+)' is not defined")


@dataclass(frozen=True)
class Live:
    """A live object, its calls, and the place that passed it to torchproof."""

    fn: Any
    calls: list[Any]
    place: Frame
    why_not_sent: str | None = None
    # Names of the main program that could not be sent, with the reason.
    unsent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Manifest:
    """What a child sets up before it loads the objects."""

    main: main_definitions.MainModule
    texts: dict[str, str]  # of cells, by path
    path: list[str]  # sys.path
    settings: TorchConfig
    configs: dict[str, TorchConfig]
    place: Frame


_STARTED = datetime.datetime.now().isoformat(timespec="seconds")
_here: dict[str, Live] = {}  # by the folder of their targets


@contextlib.contextmanager
def sent(fn: Any, calls: Any) -> Iterator[Target]:
    """The target of a live object while the block runs."""
    _assert_callable(fn)
    with tempfile.TemporaryDirectory(prefix="torchproof-live-") as folder:
        live = _written(Live(fn, calls_of(fn, calls), _place()), Path(folder))
        _here[folder] = live
        try:
            yield Target(f"live:{_name(fn)}", "live", folder, "", file=_file_of(fn))
        except UserError as error:
            raise _explained(error, live) from error.__cause__
        finally:
            del _here[folder]


def _name(fn: Any) -> str:
    """`model.Net`: tells objects of different files and notebooks apart."""
    fn = torch_private.original_of(fn)
    while isinstance(fn, functools.partial):
        fn = fn.func
    own = name_of(fn).replace("<lambda>", "lambda")
    kind = fn if hasattr(fn, "__qualname__") else type(fn)
    module = str(getattr(kind, "__module__", ""))
    if module == "__main__":
        program = getattr(sys.modules[module], "__file__", None)
        module = Path(program or _notebook() or "").stem
    return f"{module}.{own}" if module else own


def _notebook() -> str | None:
    """The file of the notebook, which Jupyter's server and VS Code know."""
    name = vars(sys.modules["__main__"]).get("__vsc_ipynb_file__")
    return name or os.environ.get("JPY_SESSION_NAME")


def session() -> str | None:
    """What tells this session from others in which names mean other objects.

    None for a program, whose file is part of the names of its objects.
    """
    if getattr(sys.modules["__main__"], "__file__", None):
        return None
    return _notebook() or f"process {os.getpid()} of {_STARTED}"


def _file_of(fn: Any) -> str:
    """The file or cell with the code of a live object; empty if torch defines it."""
    code = code_of(torch_private.original_of(fn))
    if code is None or whose(code.co_filename) != "user":
        return ""
    file = code.co_filename
    return cell_paths([file]).get(file, file)


def here(target: Target) -> Live | None:
    """The objects of a target whose block runs in this process."""
    return _here.get(target.where) if target.kind == "live" else None


def why_not_sent(target: Target) -> str | None:
    """Why no child process can run a live target; None if one can."""
    live = here(target)
    return live.why_not_sent if live else None


def load(target: Target) -> Loaded:
    """A fresh copy of the objects; in this process, the objects if there is no copy."""
    import torch

    mine = here(target)
    if mine is not None and mine.why_not_sent:
        return Loaded(mine.fn, mine.calls, None, mine.place)
    folder = Path(target.where)
    # This user wrote the files a moment ago, into a folder that nobody else can enter.
    manifest: _Manifest = pickle.loads((folder / _MANIFEST).read_bytes())
    _set_up(manifest)
    try:
        names = main_definitions.install(manifest.main, overlay.text_of)
        objects = torch.load(folder / _OBJECTS, weights_only=False)
    except (Exception, SystemExit) as error:
        raise raised(f"a child process cannot load {target.text}", error) from error
    names.update(objects["values"])
    return Loaded(objects["fn"], objects["calls"], None, manifest.place)


def _set_up(manifest: _Manifest) -> None:
    """Gives this process the sources, search path and settings of the parent."""
    for file, text in manifest.texts.items():
        cells.register(file, overlay.text_of(file) or text)
    for folder in reversed(manifest.path):
        search_first(Path(folder))
    torch_private.global_switches.apply_settings(manifest.settings)
    torch_private.configs.restore(manifest.configs)


# -- writing ---------------------------------------------------------------------------


def _assert_callable(fn: Any) -> None:
    if isinstance(fn, type):
        raise UserError(f"{fn.__name__} is a class: pass an instance of it")
    if not callable(fn):
        raise UserError(
            f"a {type(fn).__name__} is no target: pass a module, a function or the name"
            " of a target such as 'model.py:make'"
        )


def _written(live: Live, folder: Path) -> Live:
    """Writes what a child needs; the reason is in the result if that is impossible."""
    import torch

    names = cell_paths([*linecache.cache])
    place = live.place
    place = Frame(names.get(place.file, place.file), place.line, place.function)
    texts = {path: _cell_text(file) for file, path in names.items()}
    for path, text in texts.items():
        cells.register(path, text)
    values: Namespace = {}
    try:
        roots, _ = _scan({"fn": live.fn, "calls": live.calls})
        main = main_definitions.needed(roots, lambda n, v: _collect(n, v, values))
        main.rename(names, texts)
        used = {file: texts[file] for file in main.sources if file in texts}
        manifest = _manifest(main, used, place)
        (folder / _MANIFEST).write_bytes(pickle.dumps(manifest))
        objects = {"fn": live.fn, "calls": live.calls, "values": values}
        torch.save(objects, folder / _OBJECTS)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from None
    except Exception as error:
        return replace(live, place=place, why_not_sent=_why(live.fn, error))
    return replace(live, place=place, unsent=main.unsent)


def _manifest(
    main: main_definitions.MainModule, texts: dict[str, str], place: Frame
) -> _Manifest:
    return _Manifest(
        main,
        texts,
        path=[os.path.abspath(entry) for entry in sys.path],
        settings=torch_private.global_switches.process_settings(),
        configs=torch_private.configs.changed(),
        place=place,
    )


class _Scan(pickle.Pickler):
    """Pickles everything but the data of tensors."""

    has_tensors = False

    def persistent_id(self, value: Any) -> str | None:
        import torch

        storages = (torch.storage.UntypedStorage, torch.storage.TypedStorage)
        if not isinstance(value, storages):
            return None
        self.has_tensors = True
        return "storage"


def _scan(value: Any) -> tuple[list[str], bool]:
    """The names of the main program that a pickle has, and whether it has tensors."""
    pickled = io.BytesIO()
    scan = _Scan(pickled, _PROTOCOL)
    scan.dump(value)
    return main_definitions.names_in(pickled.getvalue()), scan.has_tensors


def _collect(name: str, value: Any, values: Namespace) -> list[str] | None:
    """Takes a global value with tensors, which is saved together with the objects.

    An object that both refer to is then one object in the child as well. Others have to
    be there before the definitions, which may use them as defaults.
    """
    if isinstance(value, types.ModuleType):
        return None
    try:
        names, has_tensors = _scan(value)
    except Exception:
        return None
    if not has_tensors and not names:
        return None
    values[name] = value
    return names


def _why(fn: Any, error: Exception) -> str:
    """One line about what cannot be sent to a child process."""
    name = name_of(fn)
    reason = one_line(str(error), 200)
    if isinstance(error, main_definitions.NoSource):
        return f"{name} cannot be sent to a child process: {reason}"
    if "<lambda>" in name or "<locals>" in str(getattr(fn, "__qualname__", "")):
        what = "a lambda" if "<lambda>" in name else "defined inside another function"
        return (
            f"{name} cannot be sent to a child process: it is {what}; define it with"
            " def at the top level of a cell or file"
        )
    where = _attribute(fn)
    return f"{name}{where} cannot be sent to a child process: {reason}"


def _attribute(fn: Any) -> str:
    """The attribute of a module that cannot be pickled, such as `.encoder.log`."""
    import torch

    for path, module in fn.named_modules() if isinstance(fn, torch.nn.Module) else ():
        for name, value in vars(module).items():
            if not name.startswith("_"):
                try:
                    _scan(value)
                except Exception:
                    return ".".join(("", *filter(None, [path]), name))
    return ""


def _explained(error: UserError, live: Live) -> UserError:
    """The error; if a name is missing in the child, with the reason for that."""
    unknown = _UNKNOWN_NAME.search(str(error))
    why = live.unsent.get(unknown[1]) if unknown else None
    if unknown is None or why is None:
        return error
    text = f"{error}: `{unknown[1]}` cannot be sent to a child process ({why})"
    return UserError(one_line(text, 400), details=error.details)


# -- cells -----------------------------------------------------------------------------


def cell_paths(files: Iterable[str]) -> dict[str, str]:
    """The paths that reports use for the cells among the files."""
    numbers = {file: _cell_number(file) for file in files}
    return {f: cells.path_of(n) for f, n in numbers.items() if n is not None}


def _cell_number(file: str) -> int | None:
    typed = re.fullmatch(r"<python-input-(\d+)>", file)  # Python 3.13
    if typed:
        return int(typed[1])
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    label = shell and shell.compile.format_code_name(file)
    number = re.fullmatch(r"In ?\[(\d+)\]", label[1]) if label else None
    return int(number[1]) if number else None


def _cell_text(file: str) -> str:
    """The text of a cell, after it the imports of other cells that it uses.

    What reads source finds the meaning of a name in the same file.
    """
    text = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return text
    uses: set[str] = set()
    binds: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (uses if isinstance(node.ctx, ast.Load) else binds).add(node.id)
        elif isinstance(node, ast.alias):
            binds.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            binds.add(node.name)
    namespace = vars(sys.modules["__main__"])
    found = {n: _import_of(n, namespace.get(n)) for n in sorted(uses - binds)}
    lines = [line for line in found.values() if line]
    return text + IMPORTS_BELOW + "\n".join(lines) + "\n" if lines else text


def _import_of(name: str, value: Any) -> str | None:
    if isinstance(value, types.ModuleType):
        known = sys.modules.get(value.__name__) is value
        return f"import {value.__name__} as {name}" if known else None
    module, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(own, str) or module == "__main__":
        return None
    if getattr(sys.modules.get(module), own, None) is not value:
        return None
    return f"from {module} import {own} as {name}"


def as_typed(path: str, before: str, after: str) -> str:
    """The edited text of a cell, with its magics as the user typed them.

    `before` is the text that was edited: IPython turns lines such as `%time` into
    Python.
    """
    old, new = (
        text.partition(IMPORTS_BELOW)[0].splitlines() for text in (before, after)
    )
    typed = _typed_lines(path) or old
    if len(typed) != len(old):
        return "\n".join(new)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    lines: list[str] = []
    for tag, first, last, start, end in matcher.get_opcodes():
        lines += typed[first:last] if tag == "equal" else new[start:end]
    return "\n".join(lines)


def _typed_lines(path: str) -> list[str]:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    number = re.search(r"In \[(\d+)\]$", path)
    typed = shell.history_manager.input_hist_raw if shell else []
    index = int(number[1]) if number else len(typed)
    return typed[index].splitlines() if index < len(typed) else []


def _place() -> Frame:
    """The innermost frame of the user's own code."""
    own = [frame for frame in stack() if whose(frame.file) == "user"]
    return own[-1] if own else Frame("<live>", 1, "<module>")
