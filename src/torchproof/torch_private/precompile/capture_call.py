"""Captures a compiled call as bytes, so that other processes need not compile it.

The bytes contain Dynamo's bytecode for one kind of call, the graph that Inductor
compiled, and the guards. They contain neither weights nor values of inputs.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import importlib
import inspect
import io
import os
import pickle
import sys
import types
import uuid
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchproof.records import JsonObject, Keywords, Namespace
from torchproof.torch_private import contract
from torchproof.torch_private.hooks import patched, remove_source_lines
from torchproof.torch_private.precompile import guard_expressions
from torchproof.torch_private.precompile.install_call import (
    CONVERT,
    GRAPH,
    TYPES,
    Modules,
    PrecompileError,
    code_from,
    file_mark,
    plain_function,
    rebuild_guards,
)

# Modules whose functions need no check: a pack's manifest has their versions.
_VERSIONED = ("torch", "_operator", "operator", "builtins", "math", "einops")
_NAMESPACES = ("aten", "prim", "prims", "quantized", "_c10d_functional", "higher_order")
_HERE = Modules({})
_BUNDLED = {
    "strict_autograd_cache": True,
    "bypass_autograd_cache_key": True,
    "bundled_autograd_cache": True,
    "force_non_lazy_backward_lowering": True,
    "force_autograd_cache": True,
}


def capture_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Keywords,
    arguments: Keywords,
) -> bytes:
    """Traces and compiles a call with these torch.compile arguments; returns bytes."""
    contract.require("load")
    convert = importlib.import_module(CONVERT)
    backend = inductor_backend(arguments)
    plain = plain_function(fn)
    installed: Namespace = {}
    functorch: Any = importlib.import_module("torch._functorch.config")
    with (
        guard_expressions.in_compilation("fullgraph_capture"),
        functorch.patch(strict_autograd_cache=True),
        _dynamic(arguments.get("dynamic")),
        _unique_globals(installed),
    ):
        captured = convert.fullgraph_capture(fn, args, kwargs)
        output = captured.graph_capture_output
        if captured.backend_input is None:
            raise PrecompileError("there is nothing to compile")
        assert_of_torch(captured.backend_input.graph_module)
        compiled = _compiled(captured.backend_input, backend)
        guards = guard_expressions.build_guards(
            plain.__code__, output.output_graph, save=True
        )
    head = {
        "code": guard_expressions.code_mark(plain.__code__),
        "traced": _resolvable(output.traced_code),
        "bytecode": output.bytecode.replace(
            co_filename=os.path.basename(plain.__code__.co_filename)
        ),
        "backend_id": captured.backend_input.backend_id,
        "names": _names(output, installed, guards, captured.backend_input.backend_id),
        "state": _state(output.output_graph),
        "guards": [_detached(guard) for guard in guards.saved_guards],
        "shapes": guards.shape_parts,
    }
    raw = _dumps(head)
    modules = Modules(_files(head, fn))
    rebuilt_guards = rebuild_guards(modules.loads(raw), modules, fn, (args, kwargs))
    if rebuilt_guards.unnamed:
        raise PrecompileError(
            f"a guard checks the identity of {rebuilt_guards.unnamed[0]}"
        )
    lines = zlib.compress("\n".join(rebuilt_guards.lines).encode())
    parts = {"files": modules.files, "lines": lines, "artifact": compiled}
    return pickle.dumps({**parts, "head": raw})


def _files(head: JsonObject, fn: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """The modules that are needed by name, without torch and the standard library."""
    owner: Any = getattr(fn, "__self__", None)
    parts = owner.modules() if hasattr(owner, "modules") else ()
    names = {plain_function(fn).__module__, *(type(part).__module__ for part in parts)}
    names |= {module for module, _, _ in head["traced"]}
    names |= {origin[1] for origin in head["names"].values() if len(origin) > 1}
    marks = {}
    for name in sorted(names):
        mark = file_mark(sys.modules.get(name))
        if mark and name.split(".")[0] not in ("torch", *sys.stdlib_module_names):
            marks[name] = mark
    return marks


def inductor_backend(arguments: Keywords) -> Any:
    """Inductor with the arguments of torch.compile."""
    if arguments.get("backend", "inductor") != "inductor":
        raise PrecompileError(
            f"graphs of backend {arguments['backend']} cannot be serialised"
        )
    settings = [arguments.get(name) for name in ("mode", "options", "dynamic")]
    backend = torch._TorchCompileInductorWrapper(*settings)
    inductor: Any = importlib.import_module("torch._inductor.config")
    if backend.config.get("freezing", inductor.freezing):
        raise PrecompileError("freezing makes its weights part of the compiled code")
    graphs = backend.config.get("triton.cudagraphs", inductor.triton.cudagraphs)
    if graphs and torch.cuda.is_available():
        raise PrecompileError("CUDA graphs are recorded at start")
    return backend


def _dynamic(dynamic: bool | None) -> contextlib.AbstractContextManager[Any]:
    if dynamic is None:
        return contextlib.nullcontext()
    enable = importlib.import_module("torch._dynamo.eval_frame").set_enable_dynamic
    entered: contextlib.AbstractContextManager[Any] = enable(dynamic)
    return entered


@contextlib.contextmanager
def _unique_globals(installed: Namespace) -> Iterator[None]:
    """Records the globals that Dynamo adds, and gives them globally unique names."""
    graph: Any = importlib.import_module(GRAPH).OutputGraph
    install = graph.install_global_unsafe
    token = uuid.uuid4().hex

    def install_global_unsafe(self: Any, name: str, value: Any) -> None:
        install(self, name, value)
        installed[name] = value

    def apart(
        install: Callable[[Any, str, Any], str],
    ) -> Callable[[Any, str, Any], str]:
        return lambda self, prefix, value: install(self, f"{prefix}_{token}", value)

    with (
        patched(graph, "install_global_unsafe", install_global_unsafe),
        patched(graph, "install_global", apart(graph.install_global)),
        patched(graph, "install_global_by_id", apart(graph.install_global_by_id)),
    ):
        yield


def assert_of_torch(graph: torch.fx.GraphModule) -> None:
    """Rejects calls of untraced functions, because their code may change later."""
    for module in graph.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            target = node.target
            if node.op != "call_function":
                continue
            space = getattr(target, "namespace", None)
            if space is None and type(target).__name__ == "OpOverloadPacket":
                space = target._qualified_op_name.split("::")[0]
            home = (getattr(target, "__module__", None) or "torch").split(".")[0]
            if (space or "aten") not in _NAMESPACES or home not in _VERSIONED:
                raise PrecompileError(f"it calls {target}, which is not traced")


def _compiled(graph: Any, backend: Any) -> bytes:
    graph.graph_module._backend_id = graph.backend_id
    remove_source_lines(graph.graph_module)
    return compiled_bytes(
        graph.graph_module,
        graph.example_inputs,
        graph.fake_mode,
        backend,
        contexts=graph.tensor_to_context,
    )


def compiled_bytes(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    fake_mode: Any,
    backend: Any,
    *,
    contexts: Any = None,
) -> bytes:
    """The code of a graph and of its backward, as bytes for `load_compiled`."""
    context = importlib.import_module("torch._guards")
    functorch: Any = importlib.import_module("torch._functorch.config")
    bundled = importlib.import_module(TYPES).BundledAOTAutogradSerializableCallable
    tracing = context.TracingContext(fake_mode)
    if contexts is not None:
        tracing.tensor_to_context = contexts
    with context.tracing(tracing), functorch.patch(_BUNDLED):
        compiled = backend(graph, inputs)
        if not hasattr(compiled, "serialize"):
            raise PrecompileError("torch cannot serialise the compiled graph")
        return bytes(bundled.serialize_compile_artifacts(bundled(compiled)))


def _names(
    output: Any, installed: Namespace, guards: Any, backend_id: str
) -> dict[str, tuple[str, ...]]:
    """The globals that traced code and guards need, with the origin of each."""
    guard_names = " ".join(guard.name for guard in guards.saved_guards)
    refs = set(output.get_runtime_env().external_refs)
    names: dict[str, tuple[str, ...]] = {}
    for name, value in installed.items():
        if name != backend_id and (name in refs or name in guard_names):
            names[name] = _origin(value)
    for name, module in output.import_sources.items():
        names[name] = ("module", module)
    return names


def _origin(value: Any) -> tuple[str, ...]:
    if value is builtins.__dict__:
        return ("builtins",)
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__)
    if isinstance(value, type | types.FunctionType):
        origin = ("object", value.__module__, value.__qualname__)
        if _HERE.resolve(origin) is value:
            return origin
    if isinstance(value, dict):
        module = sys.modules.get(value.get("__name__", ""))
        if module is not None and module.__dict__ is value:
            return ("globals", module.__name__)
        for cls in _subclasses(tuple):  # a named tuple has its own globals
            if getattr(cls.__new__, "__globals__", None) is value:
                return ("namedtuple", cls.__module__, cls.__qualname__)
    raise PrecompileError(
        f"its code needs a {type(value).__name__} without an importable name"
    )


def _subclasses(cls: type) -> Iterator[type]:
    children: list[type] = type.__subclasses__(cls)
    for each in children:
        yield each
        yield from _subclasses(each)


def _state(graph: Any) -> Any:
    if graph.torch_function_mode_stack or graph.functorch_layers:
        raise PrecompileError("it was traced under a torch function mode or transform")
    guards: Any = importlib.import_module("torch._dynamo.guards")
    sizes = torch.utils._pytree.tree_map(
        guards.convert_int_to_concrete_values, graph.input_source_to_sizes_strides
    )
    return dataclasses.replace(
        graph.dump_guards_state(),
        local_scope={},
        global_scope={},
        input_source_to_sizes_strides=sizes,
        _guards=None,
    )


def _detached(guard: Any) -> Any:
    """A copy of a guard without references to the objects it was built on."""
    create = guard.create_fn
    if isinstance(create, functools.partial):
        keywords = {
            name: _without_reference(value) for name, value in create.keywords.items()
        }
        create = functools.partial(
            create.func, *map(_without_reference, create.args), **keywords
        )
    return dataclasses.replace(
        guard,
        create_fn=create,
        obj_weakref=None,
        guarded_class_weakref=None,
        stack=None,
        user_stack=None,
        guard_types=None,
        code_list=None,
        _hash=None,
    )


def _without_reference(value: Any) -> Any:
    weak = isinstance(value, weakref.ref) or type(value).__name__ == "TensorWeakRef"
    return None if weak or isinstance(value, torch.Tensor) else value


def _resolvable(codes: Any) -> list[tuple[str, str, str]]:
    """The traced functions that can be imported: module, name, hash of the code."""
    functions = []
    for code in codes:
        module = inspect.getmodule(code)
        if module is None or "<" in code.co_qualname:
            continue
        with contextlib.suppress(PrecompileError):
            if _HERE.code(module.__name__, code.co_qualname) is code:
                mark = guard_expressions.code_mark(code)
                functions.append((module.__name__, code.co_qualname, mark))
    return sorted(set(functions))


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.CodeType):
            package: Any = importlib.import_module("torch._dynamo.package")
            return code_from, (package.SerializedCode.from_code_object(value),)
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, types.MappingProxyType):
            return types.MappingProxyType, (dict(value),)
        if isinstance(value, type) and hasattr(value, "_torch_handler_name"):
            handler: Any = value  # a sympy class that torch creates per operation
            return handler._torch_unpickler, (handler._torch_handler_name,)
        if isinstance(value, torch.Tensor | torch.nn.Module):
            raise PrecompileError(f"its guards hold a {type(value).__name__}")
        return NotImplemented


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise PrecompileError(f"its guards cannot be pickled: {error}") from None
    return buffer.getvalue()
