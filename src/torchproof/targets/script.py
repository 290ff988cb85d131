"""Runs an unmodified script as `__main__` in the current process."""

from __future__ import annotations

import importlib.util
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchproof.process import Stream
from torchproof.targets import overlay
from torchproof.targets.search_path import search_first
from torchproof.targets.target import Target


def run(target: Target, stream: Stream) -> int:
    """Runs the script, writes how it ended to the stream, returns its exit code."""
    path = Path(target.where).resolve()
    sys.argv = [target.where, *target.arguments]
    search_first(path.parent)
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(
        __file__=str(path), __builtins__=__builtins__, __spec__=None
    )
    sys.modules["__main__"] = main_module
    code, error = 0, None
    try:
        text = overlay.text_of(str(path)) or path.read_bytes()
        exec(compile(text, str(path), "exec"), main_module.__dict__)
    except SystemExit as exit_:
        code = (
            exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        )
        error = exit_.code if isinstance(exit_.code, str) else None
    except BaseException as raised:
        code, error = 1, traceback.format_exception_only(raised)[-1].strip()
        _print_traceback(raised, path)
    stream.write("script_end", code=code, error=error)
    return code


def _print_traceback(raised: BaseException, script: Path) -> None:
    """Prints the traceback as Python would, without torchproof's own frames."""
    tb = raised.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename != str(script):
        tb = tb.tb_next
    traceback.print_exception(type(raised), raised, tb or raised.__traceback__)


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Calls `act()` right after the program first imports a module."""
    sys.meta_path.insert(0, _Finder(name, act))


class _Finder:
    """A meta-path finder that waits for the first import of one module."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act = name, act
        self._searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Removes itself only when the module runs: others may just look it up."""
        if name != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_act(module: types.ModuleType) -> None:
            sys.meta_path.remove(self)
            execute(module)
            self._act()

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
