"""A compiled call put in force again from bytes, without tracing.

Guards are built on the live model: all of them, and they have to read as they did when
the call was written. Torch then checks them at each call as it does its own, and traces
the calls that they refuse.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof.torch_private.precompile import guard_expressions

CONVERT = "torch._dynamo.convert_frame"
TYPES = "torch._dynamo.aot_compile_types"
GRAPH = "torch._dynamo.output_graph"
_EVAL = "torch._C._dynamo.eval_frame"

PROBES: dict[str, tuple[str, ...]] = {
    "calls without tracing": (
        f"{CONVERT}:get_traced_fn",
        f"{CONVERT}:_get_frame",
        f"{CONVERT}:get_compile_id",
        f"{TYPES}:BundledAOTAutogradSerializableCallable",
        f"{_EVAL}:_load_precompile_entry",
        f"{_EVAL}:_reset_precompile_entries",
        "torch._dynamo.package:SerializedCode",
    ),
}


class PrecompileError(Exception):
    """Why a call cannot be written, or is not put in force, in one line."""


class Modules:
    """Modules by the names they had where a call was written, known by their files.

    A service may load the same file under another name than the build did.
    """

    def __init__(self, files: Mapping[str, tuple[str, str]]) -> None:
        self.files = files
        self._written = {self.here(name).__name__: name for name in files}

    def here(self, name: str) -> types.ModuleType:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
        mark = self.files.get(name, ("", ""))
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None) or ""
            if os.path.basename(path) == mark[0] and file_mark(module) == mark:
                return module
        raise PrecompileError(f"there is no module {name} here")

    def written(self, name: str) -> str:
        """The name that a module of this process had."""
        return self._written.get(name, name)

    def found(self, origin: tuple[str, ...]) -> Any:
        """What an origin names here; `PrecompileError` if there is no such thing."""
        kind, *where = origin
        if kind == "builtins":
            return builtins.__dict__
        value: Any = self.here(where[0])
        try:
            for name in where[1].split(".") if len(where) > 1 else ():
                value = inspect.getattr_static(value, name)
        except AttributeError as error:
            raise PrecompileError(str(error)) from None
        if kind == "globals":
            return value.__dict__
        return value.__new__.__globals__ if kind == "namedtuple" else value

    def code(self, module: str, name: str) -> Any:
        value = self.found(("object", module, name))
        value = getattr(value, "__func__", value)
        return getattr(getattr(value, "fget", None) or value, "__code__", None)

    def loads(self, raw: bytes) -> Any:
        return _Unpickler(self, raw).load()


def file_mark(module: Any) -> tuple[str, str] | None:
    """The name and a hash of the file that a module came from."""
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
        local_name = self._modules.here(module).__name__ if module in files else module
        return super().find_class(local_name, name)


@dataclass
class InstalledCall:
    """One call that is in force; `remove` takes it and all of its code's out again."""

    fn: Callable[..., Any]
    manager: Any
    put: list[str] = field(default_factory=list)

    def accepts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether its guards take this call, in the present state of everything."""
        return bool(self.manager.check(frame_of(self.fn, args, kwargs).locals))

    def remove(self) -> None:
        plain = plain_function(self.fn)
        importlib.import_module(_EVAL)._reset_precompile_entries(plain.__code__)
        for name in self.put:
            plain.__globals__.pop(name, None)
        self.put.clear()


def install_call(
    raw: bytes, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> InstalledCall:
    """Makes torch take calls of this kind without tracing; `PrecompileError` says why not.

    Runs code that the bytes hold: they must be trusted. The call has to be of the kind
    that was written, in the same mode; none of its values count.
    """
    parts = pickle.loads(raw)
    modules = Modules(parts["files"])
    head = modules.loads(parts["head"])
    plain = plain_function(fn)
    installed = InstalledCall(fn, None)
    guards = rebuilt(head, modules, fn, (args, kwargs), gone=_removing(installed))
    _assert_same(guards.lines, zlib.decompress(parts["lines"]).decode())
    compiled = _loaded(parts["artifact"])
    disable = importlib.import_module("torch._dynamo").disable
    plain.__globals__[head["backend_id"]] = disable(compiled)
    installed.put.append(head["backend_id"])
    installed.manager = guards.manager
    load = importlib.import_module(_EVAL)._load_precompile_entry
    load(plain.__code__, guards.manager, head["bytecode"])
    return installed


def rebuilt(
    head: Mapping[str, Any],
    modules: Modules,
    fn: Callable[..., Any],
    call: tuple[tuple[Any, ...], dict[str, Any]],
    *,
    gone: Callable[[], None] = lambda: None,
) -> guard_expressions.Guards:
    """The guards that were written, built on this call of the live function."""
    plain = plain_function(fn)
    _assert_code(head, plain, modules)
    for name, origin in head["names"].items():
        value = modules.found(origin)
        if plain.__globals__.setdefault(name, value) is not value:
            raise PrecompileError(f"{name} stands for something else here")
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
    try:
        with guard_expressions.in_compilation("load_guards"):
            return guard_expressions.built(
                plain.__code__,
                graph.OutputGraphCommon(state),
                shape_parts=head["shapes"],
                named=modules.written,
                gone=gone,
            )
    except AssertionError as error:
        reasons = str(error).split("Guard fail reason:")[-1].strip().splitlines()
        raise PrecompileError(
            f"its guards fail here: {reasons[0] if reasons else ''}"
        ) from None
    except (LookupError, AttributeError, TypeError, NameError) as error:
        raise PrecompileError(f"this model is another: {error}") from None


def _removing(installed: InstalledCall) -> Callable[[], None]:
    """An address may soon be that of another object: nothing may ask for it then."""

    def gone() -> None:
        if installed.put and not sys.is_finalizing():
            installed.remove()

    return gone


def _assert_code(
    head: Mapping[str, Any], plain: types.FunctionType, modules: Modules
) -> None:
    if guard_expressions.code_mark(plain.__code__) != head["code"]:
        raise PrecompileError(f"the code of {plain.__qualname__} is another")
    for module, name, mark in head["traced"]:
        code = modules.code(module, name)
        if code is None or guard_expressions.code_mark(code) != mark:
            raise PrecompileError(f"the code of {module}.{name} is another here")


def _assert_same(lines: tuple[str, ...], written: str) -> None:
    current, then = "\n".join(lines), written
    if current == then:
        return
    ours, theirs = set(lines), set(then.split("\n"))
    differing = sorted(ours - theirs) or sorted(theirs - ours) or [""]
    raise PrecompileError(f"this model is another: {differing[0].lstrip('+-| ')}")


def _loaded(artifact: bytes) -> Any:
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


def frame_of(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return importlib.import_module(CONVERT)._get_frame(fn, args, kwargs)


def code_from(serialized: Any) -> types.CodeType:
    code: types.CodeType = type(serialized).to_code_object(serialized)
    return code
