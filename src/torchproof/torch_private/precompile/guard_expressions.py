"""Builds guards on live objects, with a text that is the same in every process.

Many of torch's guards contain the address of an object, which differs between
processes. In the text each address is replaced by a description of the object: a
function by its name and code, a class or a module by its name. If the texts of two
processes are the same, so are their guards.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import importlib
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchproof.records import Namespace

_CLASS = re.compile(r"<class '([\w.]+)'>")
_ADDRESS = re.compile(r"(?<![\w.])\d{6,}(?![\w.])")
_BUILT_IN = (
    types.BuiltinFunctionType,
    types.GetSetDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
_SINGLE = (
    bool,
    int,
    float,
    str,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


@dataclass(frozen=True)
class Guards:
    """Guards as torch checks them, and as lines that do not depend on the process.

    `unnamed` are the sources guarded by the identity of an object without a name, which
    cannot be compared between processes.
    """

    manager: Any
    lines: tuple[str, ...]
    unnamed: tuple[str, ...]
    saved_guards: Any = None
    shape_parts: Any = None


def build_guards(
    code: types.CodeType,
    output_graph: Any,
    *,
    shape_parts: Any = None,
    save: bool = False,
    named: Callable[[str], str] = str,
    gone: Callable[[], None] = lambda: None,
) -> Guards:
    """Builds the guards of a graph; calls `gone` when a guarded object dies.

    `named` maps the name of a module of this process to its name in the lines.
    """
    check_manager = _manager_class()(
        code,
        output_graph,
        shape_code_parts=shape_parts,
        runtime_global_scope=output_graph.global_scope,
        save_guards=save,
        strict_error=save,
    )
    check_manager.gone = gone
    guard_lines = str(check_manager.guard_manager).splitlines()
    lines = sorted(
        _portable_line(check_manager.objects, line, named) for line in guard_lines
    )
    check_manager.objects.clear()  # the guards must not keep objects alive
    unnamed = tuple(dict.fromkeys(check_manager.unnamed))
    return Guards(
        manager=check_manager.guard_manager,
        lines=tuple(lines),
        unnamed=unnamed,
        saved_guards=check_manager.saved_guards,
        shape_parts=check_manager.shape_code_parts,
    )


@functools.cache
def _manager_class() -> Any:
    guards: Any = importlib.import_module("torch._dynamo.guards")

    class Manager(guards.CheckFunctionManager):
        gone: Callable[[], None] = staticmethod(lambda: None)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.objects: Namespace = {}  # by address
            self.unnamed: list[str] = []
            self.saved_guards: Any = None
            super().__init__(*args, **kwargs)

        def id_ref(self, obj: Any, obj_str: str) -> int:
            if described(obj) is None:
                self.unnamed.append(f"{obj_str} (a {type(obj).__name__})")
            self.objects[str(id(obj))] = obj
            return int(super().id_ref(obj, obj_str))

        def serialize_guards(self, builder: Any, guards: Any, graph: Any) -> bytes:
            self.saved_guards = guards  # torch would drop those that it cannot pickle
            return b""

        def build_guards(self, *args: Any, **kwargs: Any) -> Any:
            builder, manager = super().build_guards(*args, **kwargs)
            self_manager = builder._cached_guard_managers.get("L['self']")
            if self_manager is not None:
                # Only for this model: others of its class are compiled separately.
                owner = builder.scope["L"]["self"]
                address = super().id_ref(owner, "L['self']")
                self_manager.add_id_match_guard(address, ["L['self'] is itself"], None)
            return builder, manager

        def invalidate(self, obj_str: str) -> None:
            self.gone()
            super().invalidate(obj_str)

    return Manager


def _portable_line(objects: Any, line: str, named: Callable[[str], str]) -> str:
    def name(match: re.Match[str]) -> str:
        if match[0] not in objects:
            return match[0]
        value = objects[match[0]]
        return described(value, named) or f"some {type(value).__name__}"

    text = _ADDRESS.sub(name, line).strip()
    text = _CLASS.sub(
        lambda match: f"<class '{_portable_class(match[1], named)}'>", text
    )
    # Torch 2.11 adds the repr of the object, which has its address.
    return text.split(", type=")[0] if "___check_obj_id(" in text else text


def _portable_class(name: str, named: Callable[[str], str]) -> str:
    home, _, last = name.rpartition(".")
    return f"{named(home)}.{last}" if home else name


def described(value: Any, named: Callable[[str], str] = str) -> str | None:
    """A description of an object that is the same in every process, or None."""
    if value is None or value is ... or isinstance(value, _SINGLE):
        return repr(value)
    if isinstance(value, types.ModuleType):
        return f"module {named(value.__name__)}"
    if isinstance(value, type):
        return f"class {named(value.__module__)}.{value.__qualname__}"
    if isinstance(value, types.CodeType):
        return f"code {value.co_qualname} {code_mark(value)}"
    if isinstance(value, types.FunctionType):
        mark = code_mark(value.__code__)
        return f"function {named(value.__module__)}.{value.__qualname__} {mark}"
    if isinstance(value, _BUILT_IN):
        owner = getattr(value, "__objclass__", getattr(value, "__self__", None))
        home = getattr(value, "__module__", None) or _class_name(owner)
        return f"built-in {home}.{value.__qualname__}"
    if type(value).__module__ == "torch._ops":
        return f"op {value}"
    return None


def _class_name(owner: Any) -> str:
    kind = owner if isinstance(owner, type | types.ModuleType) else type(owner)
    return kind.__name__


def code_mark(code: types.CodeType) -> str:
    """A hash of a function's code, independent of its file and lines."""
    digest = hashlib.sha256(code.co_code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            digest.update(code_mark(constant).encode())
        elif isinstance(constant, frozenset):
            digest.update(repr(sorted(map(repr, constant))).encode())
        else:
            digest.update(repr(constant).encode())
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    digest.update(repr((names, code.co_argcount, code.co_flags)).encode())
    digest.update(code.co_exceptiontable)
    return digest.hexdigest()[:24]


@contextlib.contextmanager
def in_compilation(name: str) -> Iterator[None]:
    """Sets the compile context and the metrics context that torch's code needs."""
    utils = importlib.import_module("torch._dynamo.utils")
    convert = importlib.import_module("torch._dynamo.convert_frame")
    context = importlib.import_module("torch._guards")
    compile_id = context.CompileContext(convert.get_compile_id({}))
    with (
        context.compile_context(compile_id),
        utils.get_metrics_context(),
        utils.dynamo_timed(name),
    ):
        yield
