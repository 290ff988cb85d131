"""Runs Inductor's code generation in another process, with torch's wire format.

In the parent, `codegen_in_child(send, on_local)` passes each graph to `send` as bytes
and gets compiled code back as bytes. In the child, `generate` turns the first into the
second. Only the parent reads and writes the caches.
"""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import functools
import importlib
import logging
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchproof.torch_private import contract, global_switches
from torchproof.torch_private.inductor import prebuilt
from torchproof.torch_private.replacements import Place, Replacement

CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

# Operators that exist once Inductor is imported. Torch's own list has only the first
# two. Without prims, graphs with dropout or mixed precision could not be sent.
# Collectives are not included: they need process groups, which the child does not have.
_SENT_NAMESPACES = ("aten", "fbgemm", "prims", "inductor", "quantized", "mkldnn")

# Settings with Python code of the user, which torch does not send.
_USER_CODE = (
    "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass",
    "_pre_fusion_custom_pass",
    "_post_fusion_custom_pass",
    "inductor_choices_class",
)

# The first byte of an answer of the child.
_GENERATED = b"+"
_NOT_LOADED = b"?"
_asking: list[threading.Thread] = []  # of the child


@dataclass(frozen=True)
class _Route:
    send: Callable[[bytes], bytes]
    on_local: Callable[[str], None]


_route: contextvars.ContextVar[_Route | None] = contextvars.ContextVar(
    "torchproof_codegen_route", default=None
)


class _NotLoaded(Exception):
    """The child cannot load the graph."""


@contextlib.contextmanager
def codegen_in_child(
    send: Callable[[bytes], bytes], on_local: Callable[[str], None]
) -> Iterator[None]:
    """Generates code through `send`, in this context only.

    Calls `on_local(why)` before a graph that cannot be sent is compiled here.
    """
    token = _route.set(_Route(send, on_local))
    try:
        with _replacement.active():
            yield
    finally:
        _route.reset(token)


def cache_environment() -> dict[str, str]:
    """The environment variables for cache folders that are set here."""
    return {name: os.environ[name] for name in CACHE_VARIABLES if name in os.environ}


def prepare() -> None:
    """Does in the child what code generation needs, before the first graph arrives."""
    build_atomically()
    if not torch.accelerator.is_available() and not contract.missing(prebuilt.FEATURE):
        _ask_compiler_early()
    importlib.import_module("torch._inductor.compile_fx_subproc")
    importlib.import_module("torch._inductor.inductor_prims")
    importlib.import_module(
        "torch._inductor.codegen.common"
    ).init_backend_registration()
    # The parent's whole configuration is set, including deprecated settings.
    warnings.filterwarnings("ignore", r"torch\._inductor\.config\.\w+ is deprecated")


def build_atomically() -> None:
    """In a process that may be killed: a library has its name once it is complete.

    The linker writes into the cache folder. Without this, the next process that needs
    the library would load what a killed one had written of it.
    """
    builder: Any = importlib.import_module("torch._inductor.cpp_builder").CppBuilder
    original = builder.build

    @functools.wraps(original)
    def build(self: Any) -> None:
        target, output = self._target_file, self._output
        partial = f"{target}.{os.getpid()}"
        self._output = output.replace(target, partial)
        try:
            original(self)
            if self._output != output:
                os.replace(partial, target)
        finally:
            self._output = output

    builder.build = build


def _ask_compiler_early() -> None:
    """Asks the C++ compiler in a thread what the first C++ kernel needs to know.

    Which vector instructions it can use: Inductor compiles a file for that if the
    caches are empty. And whether the header of kernels is compiled for them. Whoever
    needs a result waits for it.
    """
    isa: Any = importlib.import_module("torch._inductor.cpu_vec_isa")
    config: Any = importlib.import_module("torch._inductor.config")
    # The thread must not import a module that this one is importing.
    code: Any = importlib.import_module("torch._inductor.codecache")
    usable, header = isa.valid_vec_isa_list, code._precompile_header
    compiler = config.cpp.cxx
    has_sets = threading.Event()

    def ask() -> None:
        with contextlib.suppress(Exception):  # code generation reports it
            bool(usable() and usable()[0])
        has_sets.set()
        with contextlib.suppress(Exception):
            # Of a kernel that is never compiled.
            code.CppPythonBindingsCodeCache.load_pybinding_async(
                ["float*"], "// no kernel", submit_fn=lambda compile_it: None
            )

    thread = threading.Thread(target=ask, name="torchproof-compiler-test", daemon=True)

    @functools.wraps(usable)
    def tested() -> Any:
        nonlocal compiler
        has_sets.wait()
        if config.cpp.cxx != compiler:  # the parent has set another one
            compiler = config.cpp.cxx
            _forget_test(isa)
            usable.cache_clear()
        return usable()

    @functools.wraps(header)
    def compiled_header(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread() is not thread:
            thread.join()
        return header(*arguments, **options)

    isa.valid_vec_isa_list = tested
    code._precompile_header = compiled_header
    _asking.append(thread)
    thread.start()


def _known_sets() -> tuple[str, ...]:
    """The vector instructions that the compiler can use, once that is known."""
    has_ended = _asking and not _asking[0].is_alive()
    return prebuilt.vector_sets() if has_ended else ()


def _forget_test(isa: Any) -> None:
    for kind in (isa.VecISA, *isa.VecISA.__subclasses__()):
        for member in vars(kind).values():
            if hasattr(member, "cache_clear"):
                member.cache_clear()


def generate(payload: bytes, env: Mapping[str, str]) -> bytes:
    """Compiles a graph in the child; returns what `send` has to return."""
    ext: Any = importlib.import_module("torch._inductor.compile_fx_ext")
    for name in CACHE_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(env)
    importlib.import_module("torch._inductor.utils").clear_caches()
    importlib.import_module("torch._inductor.metrics").reset()
    settings, graph = pickle.loads(payload)
    global_switches.apply_settings(settings)
    try:
        output = ext._OutOfProcessFxCompile._run_in_child(_input_class()(graph))
    except _NotLoaded as error:
        return _NOT_LOADED + str(error).encode()
    return _GENERATED + pickle.dumps((_known_sets(), output.value))


@functools.cache
def _input_class() -> Any:
    ext: Any = importlib.import_module("torch._inductor.compile_fx_ext")

    class Input(ext._WireProtocolPickledInput):
        def deserialize(self) -> Any:
            try:
                return super().deserialize()
            except Exception as error:
                raise _NotLoaded(f"{type(error).__name__}: {error}") from error

    return Input


def _memory_format(name: str) -> torch.memory_format:
    value: torch.memory_format = getattr(torch, name)
    return value


def _reduced(memory_format: torch.memory_format) -> tuple[Any, tuple[str]]:
    return _memory_format, (str(memory_format).rpartition(".")[2],)


@contextlib.contextmanager
def _formats_by_name() -> Iterator[None]:
    """Pickles a memory format by its name in torch.

    Otherwise pickle uses the first module that has imported it, which may be the
    user's, and the child would have to import that module.
    """
    before = copyreg.dispatch_table.get(torch.memory_format)
    copyreg.pickle(torch.memory_format, _reduced)
    try:
        yield
    finally:
        if before is None:
            copyreg.dispatch_table.pop(torch.memory_format, None)
        else:
            copyreg.dispatch_table[torch.memory_format] = before


def _places() -> Iterator[Place]:
    ext: Any = importlib.import_module("torch._inductor.compile_fx_ext")
    compile_fx = importlib.import_module("torch._inductor.compile_fx")
    yield compile_fx, "fx_codegen_and_compile", _routed
    yield ext._WireProtocolInput, "serialize", _with_sent_operators


def _routed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate_code(
        gm: Any, example_inputs: Any, inputs_to_check: Any, **kwargs: Any
    ) -> Any:
        route = _route.get()
        if route is None or kwargs.get("aot_mode"):
            return original(gm, example_inputs, inputs_to_check, **kwargs)
        child_compile = _compile_class()(route)
        # torch 2.11 does not have this argument.
        child_compile.compile_region_name = kwargs.pop("compile_region_name", None)
        return child_compile.codegen_and_compile(
            gm, example_inputs, inputs_to_check, kwargs
        )

    return generate_code


def _with_sent_operators(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Serialises with the operators that exist in the child."""

    @functools.wraps(original)
    def serialise(self: Any) -> Any:
        if _route.get() is None:
            return original(self)
        ext: Any = importlib.import_module("torch._inductor.compile_fx_ext")
        pickler = importlib.import_module("torch.fx._graph_pickler")
        options = pickler.Options(ops_filter=_is_sent)
        with _formats_by_name():
            return ext._WireProtocolPickledInput(
                pickler.GraphPickler.dumps(self, options=options)
            )

    return serialise


def _is_sent(operator: str) -> bool:
    return operator.split(".")[2] in _SENT_NAMESPACES  # torch.ops.aten.add.Tensor


_replacement = Replacement(_places)


@functools.cache
def _compile_class() -> Any:
    ext: Any = importlib.import_module("torch._inductor.compile_fx_ext")
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")

    class ChildCompile(ext._OutOfProcessFxCompile):
        def __init__(self, route: _Route) -> None:
            self._route = route

        def codegen_and_compile(self, *graph: Any) -> Any:
            try:
                with contextlib.ExitStack() as self._loading:
                    return super().codegen_and_compile(*graph)
            except _NotLoaded as error:
                self._route.on_local(f"the child cannot load it: {error}")
            local = compile_fx._InProcessFxCompile()
            local.compile_region_name = self.compile_region_name
            return local.codegen_and_compile(*graph)

        def serialize_compile(self, gm: Any, *rest: Any) -> Any:
            why = _why_local(gm)
            if why is None:
                with _pickling_errors() as errors:
                    try:
                        serialized = super().serialize_compile(gm, *rest)
                    except Exception as error:
                        serialized = None
                        errors.append(error)
                if serialized is not None:
                    return serialized
                why = f"it cannot be pickled: {_last_error(errors)}"
            self._route.on_local(why)
            return None

        def _send_to_child(self, pickled_input: Any) -> Any:
            answer = self._route.send(
                pickle.dumps((global_switches.process_settings(), pickled_input.value))
            )
            if answer.startswith(_NOT_LOADED):
                raise _NotLoaded(answer[1:].decode())
            vector_sets, output = pickle.loads(answer[1:])
            # What this process would probe before it loads the code, the child knows.
            self._loading.enter_context(prebuilt.without_probes(vector_sets))
            return ext._WireProtocolPickledOutput(output)

        def _send_to_child_async(self, pickled_input: Any) -> Any:
            raise NotImplementedError

    return ChildCompile


def _why_local(gm: Any) -> str | None:
    """Why another process cannot generate the code for a graph; None if it can."""
    if setting := user_code_setting():
        return f"{setting} is set"
    for module in gm.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op == "call_function" and (why := _why_local_target(node.target)):
                return why
            if node.op == "placeholder" and (why := _why_local_value(node.meta)):
                return why
    return None


def _why_local_value(meta: Mapping[str, Any]) -> str | None:
    """An object that the graph returns, as the mesh of a DTensor, would become None."""
    value = meta.get("val")
    sent = torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float
    if value is None or isinstance(value, sent):
        return None
    name = getattr(value, "script_class_name", type(value).__name__)
    return f"an argument of the type {name.rpartition('.')[2]}"


def user_code_setting() -> str | None:
    """The setting of Inductor that holds code of the user, if one is set."""
    config = importlib.import_module("torch._inductor.config")
    for name in _USER_CODE:
        if getattr(config, name, None):
            return f"torch._inductor.config.{name}"
    return None


def _why_local_target(target: Any) -> str | None:
    lowering = importlib.import_module("torch._inductor.lowering")
    if isinstance(target, torch._ops.HigherOrderOperator):
        name = target.name()
        if name.startswith("triton_kernel_wrapper"):
            return "a Triton kernel of the user's"
        # Torch does not pickle the code of a nested compile region.
        can_be_sent = target.cacheable() and name != "invoke_subgraph"
        return None if can_be_sent else f"higher-order op {name}"
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if target.namespace == "_c10d_functional":
        return f"collective {target.name()}"
    if target.namespace not in _SENT_NAMESPACES:
        return f"custom op {target.name()}"
    lowered_by = getattr(lowering.lowerings.get(target), "__module__", None) or "torch"
    if not lowered_by.startswith("torch"):
        return f"{lowered_by} lowers {target.name()}"
    return None


@contextlib.contextmanager
def _pickling_errors() -> Iterator[list[BaseException]]:
    """Collects errors that torch would log with a traceback in this thread."""
    errors: list[BaseException] = []
    thread = threading.get_ident()

    def is_other(record: logging.LogRecord) -> bool:
        if record.thread != thread or not record.exc_info or not record.exc_info[1]:
            return True
        errors.append(record.exc_info[1])
        return False

    log = importlib.import_module("torch._inductor.compile_fx").log
    log.addFilter(is_other)
    try:
        yield errors
    finally:
        log.removeFilter(is_other)


def _last_error(errors: list[BaseException]) -> str:
    return f"{type(errors[-1]).__name__}: {errors[-1]}" if errors else "unknown"
