"""Applies edits in memory: edited source is imported in place of the files on disk.

Takes the file of an `Overlay`. Imports of an edited file, and everything that asks for
its source, then get the edited text; nothing on disk changes.
"""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from torchproof import torch_private
from torchproof.records import Keywords, Mark, Overlay, Setting, UserError

_installed: dict[str, Overlay] = {}


def install(path: str) -> Overlay:
    """Applies the texts and settings of an overlay to this process, once."""
    if path not in _installed:
        overlay = _read(path)
        show_sources(overlay.texts)
        _import_from(overlay.texts)
        for setting in overlay.settings:
            _apply(setting)
        _installed[path] = overlay
    return _installed[path]


def _read(path: str) -> Overlay:
    return Overlay.from_json(json.loads(Path(path).read_text("utf-8")))


def text_of(file: str) -> str | None:
    """The text of a file in the overlays that this process applies."""
    texts = (overlay.texts.get(file) for overlay in _installed.values())
    return next((text for text in texts if text is not None), None)


def too_late(path: str) -> bool:
    """Whether this process has imported a file that an overlay edits."""
    return bool(_imported(os.path.realpath(file) for file in _read(path).texts))


def _imported(files: Iterable[str]) -> set[str]:
    loaded = {
        os.path.realpath(file)
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str)
    }
    return loaded & set(files)


def show_sources(texts: Mapping[str, str]) -> None:
    """Makes everything that reads source through `linecache` see these texts."""
    for file, text in texts.items():
        # Without a time of modification, the entry is not compared with the disk.
        entry = (len(text), None, text.splitlines(True), file)
        linecache.cache[file] = linecache.cache[os.path.realpath(file)] = entry


def hide_sources(texts: Mapping[str, str]) -> None:
    """Lets `linecache` read these files from the disk again."""
    for file in texts:
        linecache.cache.pop(file, None)
        linecache.cache.pop(os.path.realpath(file), None)


def _import_from(texts: Mapping[str, str]) -> None:
    """Imports these files from their edited texts, without caches of bytecode."""
    edited = {os.path.realpath(file): text for file, text in texts.items()}
    if early := _imported(edited):
        raise UserError(f"{early.pop()} was imported before its edits were applied")
    get_code = SourceFileLoader.get_code

    def get_edited_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        text = edited.get(os.path.realpath(loader.path))
        if text is None:
            return get_code(loader, name)
        return compile(text, loader.path, "exec", dont_inherit=True)

    setattr(SourceFileLoader, "get_code", get_edited_code)  # noqa: B010


def _apply(setting: Setting) -> None:
    group, _, name = setting.name.partition(".")
    if group == "compile":  # an argument of torch.compile, which the job has
        return
    value: Any = setting.value
    if isinstance(value, str):
        value = pkgutil.resolve_name(value)
    torch_private.set_config(group, name, value)


def compile_arguments(overlay: Overlay) -> Keywords:
    """The arguments of torch.compile among the settings."""
    names = {s.name.partition(".")[2]: s for s in overlay.settings}
    return {n: s.value for n, s in names.items() if s.name.startswith("compile.")}


def mark(overlay: Overlay, fn: Any, calls: list[Any]) -> None:
    """Marks the sizes of the calls' arguments."""
    for call in calls if overlay.marks else ():
        arguments = _named(fn, call)
        for each in overlay.marks:
            _mark(each, arguments)


def _named(fn: Any, call: Any) -> Keywords:
    """The arguments of a call by the names of the parameters."""
    if isinstance(call, dict):
        return call
    signature = inspect.signature(getattr(fn, "forward", fn))
    try:
        return dict(signature.bind(*call).arguments)
    except TypeError:  # the call itself will fail
        return {}


def _mark(each: Mark, arguments: Keywords) -> None:
    import torch

    tensor = _resolved(each.argument, arguments)
    if isinstance(tensor, torch.Tensor) and tensor.ndim > each.dimension:
        torch_private.mark_size(tensor, each.dimension, each.how, each.shape_id)


def _resolved(path: str, arguments: Keywords) -> Any:
    """The value at a path such as `batch['ids'][0].x`; None if there is none."""
    steps = re.findall(r"\[([^\]]+)\]|\.?(\w+)", path)
    value: Any = arguments
    for key, attribute in steps:
        try:
            if value is arguments:
                value = arguments[attribute]
            elif attribute:
                value = getattr(value, attribute)
            else:
                value = value[ast.literal_eval(key)]
        except (LookupError, AttributeError, TypeError, ValueError):
            return None
    return value
