"""Compiles the graphs of Dynamo in another process, with AOTAutograd and Inductor.

In the parent, `Deferred` is a backend for torch.compile: it keeps each graph, written
as bytes, and runs it uncompiled until `load` installs its compiled code. In the child,
`compile_graph` turns the bytes of a graph into the bytes of its code. The child has no
tensors: it gets shapes, and loads no kernels.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from torchproof.records import Keywords
from torchproof.torch_private import contract, early_start, global_switches
from torchproof.torch_private.dynamo import subgraphs
from torchproof.torch_private.inductor.remote_codegen import (
    CACHE_VARIABLES,
    user_code_setting,
)
from torchproof.torch_private.precompile.capture_call import (
    assert_of_torch,
    compiled_bytes,
    inductor_backend,
)
from torchproof.torch_private.precompile.install_call import (
    PrecompileError,
    load_compiled,
)

_DEVICES = ("cpu", "cuda")


class NotDeferred(Exception):
    """The reason, in one line, why a graph cannot be compiled elsewhere."""


class Deferred:
    """A backend whose graphs run uncompiled until their code is loaded."""

    def __init__(self, arguments: Keywords) -> None:
        self._arguments = dict(arguments)
        self.graphs: list[DeferredGraph] = []
        self.frozen = False  # whether another graph means that the step has changed

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> DeferredGraph:
        if self.frozen:
            raise NotDeferred("the step has changed since it was traced")
        held = held_tensors(gm)
        written = written_graph(gm, [*inputs, *held.values()], self._arguments)
        graph = DeferredGraph(gm, written, [*held.values()])
        self.graphs.append(graph)
        return graph


class DeferredGraph:
    """One graph: its bytes, and the callable that runs it.

    `held` are tensors of the graph itself, such as the state of an optimizer. Compiled
    code gets them after the arguments.
    """

    def __init__(self, gm: fx.GraphModule, written: bytes, held: list[Tensor]) -> None:
        self.written = written
        self._held = held
        self._run: Callable[..., Any] = subgraphs.forward_of(gm)

    def __call__(self, *args: Any) -> Any:
        return self._run(*args)

    def load(self, compiled: bytes) -> None:
        run, held = load_compiled(compiled), self._held
        self._run = (lambda *args: run(*args, *held)) if held else run


def probe() -> None:
    """Raises `MissingHook` if torch lacks a name that is needed here."""
    contract.require("compile")  # frames are intercepted
    contract.require("graph of compiled code")
    contract.require("compile graphs elsewhere")


def load_tracer() -> None:
    """Imports what tracing needs, a third of which torch imports at its first trace."""
    for name in early_start.TRACER:
        importlib.import_module(name)
    probe()
    plain = torch.nn.ReLU()  # making it draws no random numbers
    torch.compile(plain, backend=Deferred({}), dynamic=False)(torch.ones(1))


# -- the parent ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Input:
    """The layout of one input of a graph; `storage` numbers the memory it lies in."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_leaf: bool
    is_parameter: bool
    storage: int


def held_tensors(gm: fx.GraphModule) -> dict[str, Tensor]:
    """The tensors that are attributes of a graph, by the names in its nodes."""
    tensors = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(node.target)(gm)
            if isinstance(value, Tensor):
                tensors[node.target] = value
    return tensors


def written_graph(
    gm: fx.GraphModule, inputs: Sequence[Any], arguments: Keywords
) -> bytes:
    """A graph and all that its code depends on, as bytes; raises `NotDeferred`.

    The last inputs are the tensors that the graph holds.
    """
    pickler: Any = importlib.import_module("torch.fx._graph_pickler")
    if why := _why_not(gm):
        raise NotDeferred(why)
    try:
        graph = pickler.GraphPickler.dumps(
            _without_values(gm), pickler.Options(ops_filter=None)
        )
        return pickle.dumps(
            {
                "graph": graph,
                "inputs": _layouts(inputs),
                "arguments": dict(arguments),
                "settings": global_switches.process_settings(),
                "autocast": _autocast(),
                "inductor": _config().save_config_portable(),
                "caches": {
                    name: os.environ[name]
                    for name in CACHE_VARIABLES
                    if name in os.environ
                },
            }
        )
    except (pickle.PicklingError, AttributeError, TypeError, AssertionError) as error:
        reason = f"it cannot be pickled: {type(error).__name__}: {error}"
        raise NotDeferred(reason) from error


def _why_not(gm: fx.GraphModule) -> str | None:
    if setting := user_code_setting():
        return f"{setting} is set"
    try:
        assert_of_torch(gm)
    except PrecompileError as error:
        return str(error)
    for name, part in gm.named_modules():
        if name and (not isinstance(part, fx.GraphModule) or held_tensors(part)):
            return f"its part {name} is not a plain graph"
    return None


def _without_values(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy that holds no tensors: neither as metadata of nodes nor as attributes.

    Tensors that were attributes are its last inputs.
    """
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            copied[node] = graph.node_copy(node)
    lifted = {
        name: graph.placeholder(f"held_{number}")
        for number, name in enumerate(held_tensors(gm))
    }
    for node in gm.graph.nodes:
        if node.op == "get_attr" and node.target in lifted:
            copied[node] = lifted[node.target]
        elif node.op != "placeholder":
            copied[node] = graph.node_copy(node, copied.__getitem__)
    for node in graph.nodes:
        node.meta = {}
    children = gm.named_children()
    parts = {name: _without_values(part) for name, part in children}  # type: ignore[arg-type]
    return fx.GraphModule(parts, graph)


def _layouts(inputs: Sequence[Any]) -> list[_Input]:
    storages: dict[int, int] = {}
    layouts = []
    for number, value in enumerate(inputs):
        if not isinstance(value, Tensor) or _is_symbolic(value):
            raise NotDeferred(f"its input {number} is not a tensor of fixed size")
        if value.layout is not torch.strided or not _is_plain(value):
            raise NotDeferred(f"its input {number} is not a plain tensor")
        storage = value.untyped_storage()._cdata
        layouts.append(
            _Input(
                shape=tuple(value.shape),
                stride=tuple(value.stride()),
                offset=int(value.storage_offset()),
                dtype=value.dtype,
                device=value.device,
                requires_grad=value.requires_grad,
                is_leaf=value.is_leaf,
                is_parameter=isinstance(value, nn.Parameter),
                storage=storages.setdefault(storage, len(storages)),
            )
        )
    return layouts


def _is_symbolic(value: Tensor) -> bool:
    return any(
        isinstance(each, torch.SymInt) for each in (*value.shape, *value.stride())
    )


def _is_plain(value: Tensor) -> bool:
    return type(value) in (Tensor, nn.Parameter)


def _autocast() -> dict[str, tuple[bool, torch.dtype]]:
    return {
        device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in _DEVICES
    }


def _config() -> Any:
    return importlib.import_module("torch._inductor.config")


# -- the child -------------------------------------------------------------------------


def compile_graph(written: bytes) -> bytes:
    """The compiled code of a graph; runs in the child."""
    request = pickle.loads(written)
    for name in CACHE_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(request["caches"])
    importlib.import_module("torch._inductor.utils").clear_caches()
    global_switches.apply_settings(request["settings"])
    fake = importlib.import_module("torch._subclasses.fake_tensor")
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    pickler = importlib.import_module("torch.fx._graph_pickler")
    mode = fake.FakeTensorMode(shape_env=shapes.ShapeEnv(), static_shapes=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_config().patch(request["inductor"]))
        stack.enter_context(_without_device())
        for device, (enabled, dtype) in request["autocast"].items():
            if enabled:
                stack.enter_context(torch.autocast(device, dtype=dtype))
        graph = pickler.GraphPickler.loads(request["graph"], mode)
        graph.recompile()
        with mode:
            inputs = _fake_inputs(request["inputs"])
        backend = inductor_backend(request["arguments"])
        return compiled_bytes(graph, inputs, mode, backend)


def _fake_inputs(layouts: Sequence[_Input]) -> list[Tensor]:
    """Fake tensors of these layouts; those that shared memory share it here."""
    ends: dict[int, int] = {}
    for each in layouts:
        last = sum(
            (size - 1) * stride
            for size, stride in zip(each.shape, each.stride, strict=True)
        )
        bytes_needed = (each.offset + last + 1) * each.dtype.itemsize
        ends[each.storage] = max(ends.get(each.storage, 0), bytes_needed)
    memory: dict[int, Tensor] = {}
    tensors = []
    for each in layouts:
        if each.storage not in memory:
            memory[each.storage] = torch.empty(
                ends[each.storage], dtype=torch.uint8, device=each.device
            )
        tensor = torch.empty(0, dtype=each.dtype, device=each.device).set_(
            memory[each.storage].untyped_storage(), each.offset, each.shape, each.stride
        )
        tensors.append(_with_gradient(tensor, each))
    return tensors


def _with_gradient(tensor: Tensor, layout: _Input) -> Tensor:
    if layout.is_parameter:
        return nn.Parameter(tensor, requires_grad=layout.requires_grad)
    tensor.requires_grad_(layout.requires_grad)
    if layout.is_leaf:
        return tensor
    with torch.enable_grad():
        copied = tensor.clone()
    return copied if copied.stride() == layout.stride else tensor


@contextlib.contextmanager
def _without_device() -> Iterator[None]:
    """Compiles kernels without loading them, which would create a CUDA context."""
    if not torch.cuda.is_available():
        yield
        return
    fake: Any = importlib.import_module("torch._subclasses.fake_tensor")
    heuristics: Any = importlib.import_module(
        "torch._inductor.runtime.triton_heuristics"
    )
    hooks = importlib.import_module("torchproof.torch_private.hooks")
    torch.cuda.init()
    tuner = heuristics.CachingAutotuner
    with (
        hooks.patched(fake, "init_gpu_context", lambda *_: None),
        hooks.patched(tuner, "_make_launchers", lambda self: None),
        hooks.patched(tuner, "_dynamic_scale_rblock", lambda self: None),
    ):
        yield
