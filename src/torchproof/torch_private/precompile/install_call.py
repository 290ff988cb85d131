"""Installs a compiled call from bytes, without tracing.

All guards are rebuilt on the live model, and must be the same as when the call was
captured. Torch then checks them at each call like its own, and traces the calls for
which they fail.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import hashlib
import importlib
import inspect
import io
import os
import pickle
import sys
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof.records import JsonObject, Keywords
from torchproof.torch_private import contract
from torchproof.torch_private.precompile import guard_expressions

CONVERT = "torch._dynamo.convert_frame"
TYPES = "torch._dynamo.aot_compile_types"
GRAPH = "torch._dynamo.output_graph"
_EVAL = "torch._C._dynamo.eval_frame"


class PrecompileError(Exception):
    """The reason, in one line, why a call cannot be captured or installed."""


class Modules:
    """Maps the module names of the capturing process to modules of this process.

    A module is matched by its file if it has another name here. `files` has the file
    name and hash of each module.
    """

    def __init__(self, files: Mapping[str, tuple[str, str]]) -> None:
        self.files = files
        self._captured_names = {self.module(name).__name__: name for name in files}

    def module(self, name: str) -> types.ModuleType:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
        mark = self.files.get(name, ("", ""))
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None) or ""
            if os.path.basename(path) == mark[0] and file_mark(module) == mark:
                return module
        raise PrecompileError(f"there is no module {name} in this process")

    def captured_name(self, name: str) -> str:
        """The name of a module of this process in the capturing process."""
        return self._captured_names.get(name, name)

    def resolve(self, origin: tuple[str, ...]) -> Any:
        """The object that an origin names; `PrecompileError` if it does not exist."""
        kind, *where = origin
        if kind == "builtins":
            return builtins.__dict__
        value: Any = self.module(where[0])
        try:
            for name in where[1].split(".") if len(where) > 1 else ():
                value = inspect.getattr_static(value, name)
        except AttributeError as error:
            raise PrecompileError(str(error)) from None
        if kind == "globals":
            return value.__dict__
        return value.__new__.__globals__ if kind == "namedtuple" else value

    def code(self, module: str, name: str) -> Any:
        value = self.resolve(("object", module, name))
        value = getattr(value, "__func__", value)
        return getattr(getattr(value, "fget", None) or value, "__code__", None)

    def loads(self, raw: bytes) -> Any:
        return _Unpickler(self, raw).load()


def file_mark(module: Any) -> tuple[str, str] | None:
    """The name and a hash of a module's file; None without a file."""
    path = getattr(module, "__file__", None)
    try:
        raw = Path(path).read_bytes() if path else None
    except OSError:
        return None
    if path is None or raw is None:
        return None
    return os.path.basename(path), hashlib.sha256(raw).hexdigest()


class _Unpickler(pickle.Unpickler):
    def __init__(self, modules: Modules, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw))
        self._modules = modules

    def find_class(self, module: str, name: str) -> Any:
        files = self._modules.files
        local_name = (
            self._modules.module(module).__name__ if module in files else module
        )
        return super().find_class(local_name, name)


@dataclass
class InstalledCall:
    """An installed call; `remove` also removes all others of the same function."""

    fn: Callable[..., Any]
    manager: Any
    # The names that were added to the function's globals.
    global_names: list[str] = field(default_factory=list)

    def accepts(self, args: tuple[Any, ...], kwargs: Keywords) -> bool:
        """Whether its guards hold for this call in the current state."""
        return bool(self.manager.check(frame_of(self.fn, args, kwargs).locals))

    def remove(self) -> None:
        plain = plain_function(self.fn)
        importlib.import_module(_EVAL)._reset_precompile_entries(plain.__code__)
        for name in self.global_names:
            plain.__globals__.pop(name, None)
        self.global_names.clear()


def install_call(
    raw: bytes, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords
) -> InstalledCall:
    """Installs a captured call, so that torch does not trace calls of this kind.

    Raises `PrecompileError` if the call does not fit this process. The bytes contain
    code that is executed: they must be trusted. `args` and `kwargs` must be of the kind
    that was captured, in the same mode; their values do not matter.
    """
    if messages := contract.missing("load"):
        raise PrecompileError(messages[0])
    parts = pickle.loads(raw)
    modules = Modules(parts["files"])
    with _refusing("it cannot be read"):
        head = modules.loads(parts["head"])
    plain = plain_function(fn)
    installed = InstalledCall(fn, None)
    guards = rebuild_guards(
        head, modules, fn, (args, kwargs), gone=_remove_when_gone(installed)
    )
    _assert_same(guards.lines, zlib.decompress(parts["lines"]).decode())
    with _refusing("its graph does not load"):
        compiled = load_compiled(parts["artifact"])
    disable = importlib.import_module("torch._dynamo").disable
    plain.__globals__[head["backend_id"]] = disable(compiled)
    installed.global_names.append(head["backend_id"])
    installed.manager = guards.manager
    load = importlib.import_module(_EVAL)._load_precompile_entry
    load(plain.__code__, guards.manager, head["bytecode"])
    return installed


def rebuild_guards(
    head: JsonObject,
    modules: Modules,
    fn: Callable[..., Any],
    call: tuple[tuple[Any, ...], Keywords],
    *,
    gone: Callable[[], None] = lambda: None,
) -> guard_expressions.Guards:
    """Rebuilds the captured guards on this call of the live function."""
    plain = plain_function(fn)
    _assert_code(head, plain, modules)
    for name, origin in head["names"].items():
        value = modules.resolve(origin)
        if plain.__globals__.setdefault(name, value) is not value:
            raise PrecompileError(f"{name} is another object in this process")
    graph: Any = importlib.import_module(GRAPH)
    context: Any = importlib.import_module("torch._guards")
    ordered = importlib.import_module("torch.utils._ordered_set").OrderedSet
    state = dataclasses.replace(
        head["state"],
        local_scope=frame_of(fn, *call).locals,
        global_scope=plain.__globals__,
        _guards=context.GuardsSet(ordered(head["guards"])),
        skip_guards_check=False,
    )
    with (
        _refusing("its guards fail here"),
        guard_expressions.in_compilation("load_guards"),
    ):
        return guard_expressions.build_guards(
            plain.__code__,
            graph.OutputGraphCommon(state),
            shape_parts=head["shapes"],
            named=modules.captured_name,
            gone=gone,
        )


@contextlib.contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Any error of torch means that the call does not fit this process."""
    try:
        yield
    except PrecompileError:
        raise
    except Exception as error:
        text = str(error).split("Guard fail reason:")[-1].strip()
        line = text.splitlines()[0] if text else ""
        raise PrecompileError(f"{what}: {type(error).__name__}: {line}") from None


def _remove_when_gone(installed: InstalledCall) -> Callable[[], None]:
    """Removes the call when a guarded object dies: its address may be reused."""

    def gone() -> None:
        if installed.global_names and not sys.is_finalizing():
            installed.remove()

    return gone


def _assert_code(head: JsonObject, plain: types.FunctionType, modules: Modules) -> None:
    if guard_expressions.code_mark(plain.__code__) != head["code"]:
        raise PrecompileError(f"the code of {plain.__qualname__} is different")
    for module, name, mark in head["traced"]:
        code = modules.code(module, name)
        if code is None or guard_expressions.code_mark(code) != mark:
            raise PrecompileError(f"the code of {module}.{name} is different")


def _assert_same(lines: tuple[str, ...], written: str) -> None:
    if "\n".join(lines) == written:
        return
    ours = set(lines)
    theirs = set(written.split("\n"))
    differing = sorted(ours - theirs) or sorted(theirs - ours) or [""]
    raise PrecompileError(f"this model is different: {differing[0].lstrip('+-| ')}")


def load_compiled(artifact: bytes) -> Any:
    """The callable of a graph that `compiled_bytes` wrote."""
    inductor: Any = importlib.import_module("torch._inductor.config")
    bundled = importlib.import_module(TYPES).BundledAOTAutogradSerializableCallable
    with (
        guard_expressions.in_compilation("load_graph"),
        inductor.patch(enable_autograd_for_aot=True),
    ):
        return bundled.deserialize_compile_artifacts(artifact)


def plain_function(fn: Callable[..., Any]) -> types.FunctionType:
    function: types.FunctionType = importlib.import_module(CONVERT).get_traced_fn(fn)[0]
    return function


def frame_of(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords) -> Any:
    return importlib.import_module(CONVERT)._get_frame(fn, args, kwargs)


def code_from(serialized: Any) -> types.CodeType:
    code: types.CodeType = type(serialized).to_code_object(serialized)
    return code
