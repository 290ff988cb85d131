"""Which line makes a compiled answer wrong, and which layer of the compiler.

Comes in: a trial whose compiled answers differ from eager's. Goes out: the first layer
that is wrong, and the operations whose values are wrong though what they were given is
right, each with the user's stack.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchproof.measure import numerics
from torchproof.measure.diagnosis.reruns import Trial, Wrong
from torchproof.measure.numerics import float64_mode
from torchproof.records import Frame, frames_in
from torchproof.torch_private import compile_costs, switches

# From the first layer to the last; each runs all the layers before it.
LADDER: dict[str, str] = {
    "eager": "Dynamo (tracing)",
    "aot_eager": "AOTAutograd (functionalisation)",
    "aot_eager_decomp_partition": "decompositions",
    "inductor": "Inductor (code generation)",
}
# Graphs whose values together take more than this are not looked into.
_ROOM_BYTES = 2 * 2**30
_MOST_SUSPECTS = 3


@dataclass(frozen=True)
class Layer:
    """The first layer whose answers are wrong; `rung` is the backend that shows it."""

    rung: str | None  # None: the program's own backend, which is none of the ladder's
    name: str
    wrong: Wrong


@dataclass(frozen=True)
class Suspect:
    """An operation that turns right values into wrong ones."""

    operation: str
    frames: tuple[Frame, ...]
    gives: str  # the type of its elements
    numerics: Mapping[str, Any]
    undeclared: tuple[str, ...] = ()  # arguments it changes without saying so


def first_wrong_layer(trial: Trial) -> Layer | None:
    """Backends tried in the order of what they add; None if all give right answers."""
    rungs, own = list(LADDER), trial.backend
    below = rungs[: rungs.index(own)] if own in rungs else rungs[:2]
    for rung in [*below, None]:
        with compile_costs.eager_random():
            wrong = _wrong(trial, rung)
        if wrong is not None:
            return Layer(rung, LADDER.get(rung or own, f"the backend {own}"), wrong)
    return None


def _wrong(trial: Trial, rung: str | None) -> Wrong | None:
    """A rung that cannot compile the target says nothing about its answers."""
    try:
        answers = trial.compiled(rung)
    except Exception:
        return None
    return trial.wrong(answers)


def suspects(trial: Trial, rung: str | None) -> list[Suspect]:
    """The operations to blame, in the order they ran; none if it cannot be told.

    Every value of each graph becomes an output of it as well. That changes what the
    compiler may fuse: if the wrong answer disappears with it, nothing is blamed.
    """
    found: list[Suspect] = []

    def instrumented(arguments: Mapping[str, Any]) -> Callable[..., Any]:
        told = arguments if rung is None else {"backend": rung}
        compile_graph = switches.graph_compiler(told)
        return lambda gm, inputs: _Instrumented(gm, inputs, compile_graph, found)

    with contextlib.suppress(Exception), compile_costs.eager_random():
        trial.compiled(instrumented)
    return found[:_MOST_SUSPECTS]


class _Instrumented:
    """One graph, compiled so that it gives all its values, and checked as it runs."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        compile_graph: Callable[..., Any],
        found: list[Suspect],
    ) -> None:
        self.found = found
        self.plain, copies = _copied(gm)
        shown = _show_values(gm) if _takes(gm.graph) <= _ROOM_BYTES else []
        self.shown = [copies[node] for node in shown]
        self.compiled = compile_graph(gm, inputs)

    def __call__(self, *inputs: Any) -> Any:
        before, states = [_cloned(value) for value in inputs], _random_states()
        outputs = self.compiled(*inputs)
        own = len(outputs) - len(self.shown)
        if self.shown and not self.found:
            later = _random_states()
            self._compare(outputs[own:], before, states)
            _set_random_states(later)
        return outputs[:own]

    def _compare(
        self, values: Sequence[Any], inputs: list[Any], states: list[Any]
    ) -> None:
        """Blames what is wrong though all that led to it is right."""
        _set_random_states(states)
        replay = _Replay(self.plain)
        with torch.no_grad(), float64_mode.DrawRecorder() as record:
            replay.run(*[_cloned(value) for value in inputs])
        _set_random_states(states)
        exact = _exact_values(self.plain, inputs, record.draws)
        explained: set[Any] = set()
        for node, value in zip(self.shown, values, strict=True):
            told = numerics.judge(
                {node.name: value},
                {node.name: replay.values[node.name]},
                exact and {node.name: exact[node.name]},
            )
            if told.verdict != "wrong":
                continue
            history = _ancestors(node)
            if explained.isdisjoint(history):
                self.found.append(_suspect(node, told.to_json(), replay))
            explained |= history


def _suspect(node: Any, told: Mapping[str, Any], replay: _Replay) -> Suspect:
    """The operation itself, or one before it that secretly changed its arguments."""
    gives = str(replay.values[node.name].dtype)
    for culprit, arguments in replay.undeclared.items():
        if culprit < node:
            return Suspect(_name(culprit), _frames(culprit), gives, told, arguments)
    return Suspect(_name(node), _frames(node), gives, told)


class _Replay(torch.fx.Interpreter):
    """Runs a graph in eager, operation by operation, and keeps copies of the values."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm)
        self.values: dict[str, Any] = {}
        self.undeclared: dict[Any, tuple[str, ...]] = {}

    def run_node(self, n: Any) -> Any:
        quiet = (
            switches.unmutated_arguments(n.target) if n.op == "call_function" else {}
        )
        told = self.fetch_args_kwargs_from_env(n)[0] if quiet else ()
        before = [_cloned(value) for value in told]
        result = super().run_node(n)
        self.values[n.name] = _cloned(result)
        changed = [
            quiet[i]
            for i, (old, value) in enumerate(zip(before, told, strict=True))
            if i in quiet and _changed(old, value)
        ]
        if changed:
            self.undeclared[n] = tuple(changed)
        return result


def _exact_values(
    gm: torch.fx.GraphModule, inputs: list[Any], draws: list[Any]
) -> dict[str, Any] | None:
    """The values in double precision, where that can be computed."""
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
    """The same graph apart, and which of its nodes stands for which."""
    graph = torch.fx.Graph()
    nodes: dict[Any, Any] = {}
    graph.output(graph.graph_copy(gm.graph, nodes))
    return torch.fx.GraphModule(gm, graph), nodes


def _show_values(gm: torch.fx.GraphModule) -> list[Any]:
    """Makes copies of all computed tensors further outputs; returns their nodes."""
    shown, copies = [], []
    for node in list(gm.graph.nodes):
        value = node.meta.get("example_value")
        if node.op.startswith("call") and isinstance(value, torch.Tensor):
            with gm.graph.inserting_after(node):
                apart = gm.graph.call_method("detach", (node,))
            with gm.graph.inserting_after(apart):
                copies.append(gm.graph.call_method("clone", (apart,)))
            shown.append(node)
    [output] = [node for node in gm.graph.nodes if node.op == "output"]
    output.args = ((*output.args[0], *copies),)
    gm.recompile()
    return shown


def _takes(graph: torch.fx.Graph) -> int:
    """Bytes of all values; a size that varies counts as it was when traced."""
    total = 0
    for node in graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            number = value.numel()
            hint = getattr(getattr(number, "node", None), "hint", number)
            total += (hint or 0) * value.element_size()
    return total


def _ancestors(node: Any) -> set[Any]:
    """A node and all that was computed for it."""
    found, waiting = set(), [node]
    while waiting:
        each = waiting.pop()
        if each not in found and each.op != "placeholder":
            found.add(each)
            waiting += each.all_input_nodes
    return found


def _cloned(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _name(node: Any) -> str:
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if operator := switches.operator_name(node.target):
        return operator
    name = getattr(node.target, "__name__", str(node.target))
    module = (getattr(node.target, "__module__", "") or "").lstrip("_")
    # Most functions of torch are attributes of a class without a name of its own.
    return f"{module or 'torch'}.{name}"


def _frames(node: Any) -> tuple[Frame, ...]:
    return frames_in(node.stack_trace or "")
