"""Finds the compiler layer and the operations that make compiled outputs wrong.

Takes a runner whose compiled outputs differ from eager's. Returns the first wrong
layer, and the operations with right inputs and wrong results, with the user's stack.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchproof.measure.diagnosis.reruns import TargetRunner, WrongCall
from torchproof.measure.numerics import float64_mode
from torchproof.records import Frame, Keywords, frames_in, shapes
from torchproof.torch_private import comparison, compile_costs, switches

# Backends from the first layer to the last; each runs all layers before it.
LAYERS: dict[str, str] = {
    "eager": "Dynamo (tracing)",
    "aot_eager": "AOTAutograd (functionalisation)",
    "aot_eager_decomp_partition": "decompositions",
    "inductor": "Inductor (code generation)",
}
# Graphs whose values take more memory than this are not instrumented.
_ROOM_BYTES = 2 * 2**30
_MOST_SUSPECTS = 3


@dataclass(frozen=True)
class Layer:
    """The first layer with wrong outputs; `backend` is the backend that shows it."""

    backend: str | None  # None: the program's own backend, not in LAYERS
    name: str
    wrong: WrongCall


@dataclass(frozen=True)
class Suspect:
    """An operation that turns right values into wrong ones."""

    operation: str
    frames: tuple[Frame, ...]
    gives: str  # the dtype of its result
    numerics: shapes.Numerics
    undeclared: tuple[str, ...] = ()  # arguments that it mutates undeclared


def first_wrong_layer(runner: TargetRunner) -> Layer | None:
    """Tries backends layer by layer; returns None if all outputs are right."""
    backends, own = list(LAYERS), runner.backend
    below = backends[: backends.index(own)] if own in backends else backends[:2]
    for backend in [*below, None]:
        with compile_costs.eager_random():
            wrong = _wrong(runner, backend)
        if wrong is not None:
            return Layer(
                backend, LAYERS.get(backend or own, f"the backend {own}"), wrong
            )
    return None


def _wrong(runner: TargetRunner, backend: str | None) -> WrongCall | None:
    """Compares the outputs of a backend; one that fails to compile tells nothing."""
    try:
        outputs = runner.compiled(backend)
    except Exception:
        return None
    return runner.wrong(outputs)


def suspects(runner: TargetRunner, backend: str | None) -> list[Suspect]:
    """Returns the operations to blame, in order of execution.

    Every value of a graph becomes an output as well. That changes what the compiler can
    fuse; if it makes the outputs right, no operation is blamed.
    """
    blamed: list[Suspect] = []

    def instrumented(arguments: Keywords) -> Callable[..., Any]:
        compile_arguments = arguments if backend is None else {"backend": backend}
        compile_graph = switches.graph_compiler(compile_arguments)
        return lambda gm, inputs: _Instrumented(gm, inputs, compile_graph, blamed)

    with contextlib.suppress(Exception), compile_costs.eager_random():
        runner.compiled(instrumented)
    return blamed[:_MOST_SUSPECTS]


class _Instrumented:
    """One graph, compiled to return all its values, which each call checks."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        compile_graph: Callable[..., Any],
        blamed: list[Suspect],
    ) -> None:
        self.blamed = blamed
        self.plain, copies = _copied(gm)
        shown = _show_values(gm) if _total_bytes(gm.graph) <= _ROOM_BYTES else []
        self.shown = [copies[node] for node in shown]
        self.compiled = compile_graph(gm, inputs)

    def __call__(self, *inputs: Any) -> Any:
        before = [_cloned(value) for value in inputs]
        states = _random_states()
        outputs = self.compiled(*inputs)
        output_count = len(outputs) - len(self.shown)
        if self.shown and not self.blamed:
            later = _random_states()
            self._compare(outputs[output_count:], before, states)
            _set_random_states(later)
        return outputs[:output_count]

    def _compare(
        self, values: Sequence[Any], inputs: list[Any], states: list[Any]
    ) -> None:
        """Blames each wrong value whose inputs are all right."""
        _set_random_states(states)
        replay = _Replay(self.plain)
        with torch.no_grad(), float64_mode.DrawRecorder() as recorder:
            replay.run(*[_cloned(value) for value in inputs])
        _set_random_states(states)
        exact = _exact_values(self.plain, inputs, recorder.draws)
        explained: set[Any] = set()
        for node, value in zip(self.shown, values, strict=True):
            result = comparison.compare(
                {node.name: value},
                {node.name: replay.values[node.name]},
                exact and {node.name: exact[node.name]},
            )
            if result.verdict != "wrong":
                continue
            history = _ancestors(node)
            if explained.isdisjoint(history):
                self.blamed.append(_suspect(node, result.to_json(), replay))
            explained |= history


def _suspect(node: Any, verdict: shapes.Numerics, replay: _Replay) -> Suspect:
    """Blames the operation, or an earlier one with undeclared mutations."""
    gives = str(replay.values[node.name].dtype)
    for culprit, arguments in replay.undeclared.items():
        if culprit < node:
            return Suspect(
                operation=_name(culprit),
                frames=_frames(culprit),
                gives=gives,
                numerics=verdict,
                undeclared=arguments,
            )
    return Suspect(_name(node), _frames(node), gives, verdict)


class _Replay(torch.fx.Interpreter):
    """Runs a graph in eager, node by node, and keeps copies of the values."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm)
        self.values: dict[str, Any] = {}
        self.undeclared: dict[Any, tuple[str, ...]] = {}

    def run_node(self, n: Any) -> Any:
        undeclared = (
            switches.unmutated_arguments(n.target) if n.op == "call_function" else {}
        )
        arguments = self.fetch_args_kwargs_from_env(n)[0] if undeclared else ()
        before = [_cloned(value) for value in arguments]
        result = super().run_node(n)
        self.values[n.name] = _cloned(result)
        changed = [
            undeclared[i]
            for i, (old, value) in enumerate(zip(before, arguments, strict=True))
            if i in undeclared and _changed(old, value)
        ]
        if changed:
            self.undeclared[n] = tuple(changed)
        return result


def _exact_values(
    gm: torch.fx.GraphModule, inputs: list[Any], draws: list[Any]
) -> comparison.Answers | None:
    """Returns the values in float64, or None if that fails."""
    replay = _Replay(gm)
    try:
        with torch.no_grad(), float64_mode.float64_computation(draws):
            replay.run(*[float64_mode.wider(_cloned(value)) for value in inputs])
    except Exception:
        return None
    return replay.values


def _random_states() -> list[Any]:
    devices = torch.cuda.is_initialized()
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if devices else ())]


def _set_random_states(states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    if states[1:]:
        torch.cuda.set_rng_state_all(states[1:])


def _changed(old: Any, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not torch.allclose(
        old, value, rtol=0, atol=0, equal_nan=True
    )


def _copied(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, dict[Any, Any]]:
    """Returns a copy of the graph, and the copy of each node."""
    graph = torch.fx.Graph()
    nodes: dict[Any, Any] = {}
    graph.output(graph.graph_copy(gm.graph, nodes))
    return torch.fx.GraphModule(gm, graph), nodes


def _show_values(gm: torch.fx.GraphModule) -> list[Any]:
    """Adds copies of all computed tensors to the outputs; returns their nodes."""
    shown = []
    copies = []
    for node in list(gm.graph.nodes):
        value = node.meta.get("example_value")
        if node.op.startswith("call") and isinstance(value, torch.Tensor):
            with gm.graph.inserting_after(node):
                detached = gm.graph.call_method("detach", (node,))
            with gm.graph.inserting_after(detached):
                copies.append(gm.graph.call_method("clone", (detached,)))
            shown.append(node)
    [output] = [node for node in gm.graph.nodes if node.op == "output"]
    output.args = ((*output.args[0], *copies),)
    gm.recompile()
    return shown


def _total_bytes(graph: torch.fx.Graph) -> int:
    """Returns the bytes of all values; a dynamic size counts as traced."""
    total = 0
    for node in graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            number = value.numel()
            hint = getattr(getattr(number, "node", None), "hint", number)
            total += (hint or 0) * value.element_size()
    return total


def _ancestors(node: Any) -> set[Any]:
    """Returns a node and all nodes it depends on."""
    ancestors, waiting = set(), [node]
    while waiting:
        each = waiting.pop()
        if each not in ancestors and each.op != "placeholder":
            ancestors.add(each)
            waiting += each.all_input_nodes
    return ancestors


def _cloned(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _name(node: Any) -> str:
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if operator := switches.operator_name(node.target):
        return operator
    name = getattr(node.target, "__name__", str(node.target))
    module = (getattr(node.target, "__module__", "") or "").lstrip("_")
    # Most functions of torch belong to a class without a module name.
    return f"{module or 'torch'}.{name}"


def _frames(node: Any) -> tuple[Frame, ...]:
    return frames_in(node.stack_trace or "")
