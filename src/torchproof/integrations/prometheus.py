"""Prometheus metrics of compiled models, read when they are scraped.

prometheus_client.REGISTRY.register(StatusCollector(classifier=model))
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from torch import nn

from torchproof import runtime
from torchproof.integrations.compile_metrics import is_switched_off, status_of

_COUNTERS = {
    "calls": "Calls of the model",
    "compiled_calls": "Calls that ran compiled code",
    "compiles": "Compilations",
    "recompiles": "Compilations of a function that had compiled code before",
    "compile_seconds": "Seconds of compiling, in the background too",
    "fallbacks": "Parts that run eager instead of compiled, by kind of reason",
    "stalls": "Calls of the model that waited for the compiler",
    "stall_seconds": "Seconds that calls of the model waited for the compiler",
    "graph_hits": "Calls that a CUDA graph replayed",
    "graph_recordings": "Recordings of CUDA graphs, for which a call waits",
}
_GAUGES = {
    "graph_breaks": "Places where compiled code runs plain Python",
}
# The name of a metric, and its further labels.
_Series = tuple[str, tuple[str, ...]]


class StatusCollector(Collector):
    """The figures of models, each labelled with the name that it is given here.

    Takes models of `torchproof.compile`, models with a pack of `torchproof.load`, and
    steps of `torchproof.graph`; packages, which count nothing, are refused. What is
    unknown is left out, and so is a model while its forward is replaced by another.
    Counters begin again if a model is compiled or loaded again.
    """

    def __init__(self, /, **models: Any) -> None:
        for model in models.values():
            if not _is_graphed(model) and not is_switched_off():
                runtime.compiled_forward_of(model)  # raises if it is not compiled
        self._models = models
        self._lock = threading.Lock()
        self._highest: dict[str, dict[_Series, float]] = {}
        self._counted: dict[str, weakref.ref[Any]] = {}  # what counts, by name

    def describe(self) -> list[Metric]:
        """Names alone, so that a second collector of the same ones is refused."""
        return list(_families().values())

    def collect(self) -> Iterator[Metric]:
        families = _families()
        for name, model in self._models.items():
            self._begin_again(name, model)
            for (metric, labels), value in _figures(model).items():
                if metric in _COUNTERS:
                    value = self._never_less(name, (metric, labels), value)
                families[metric].add_metric([name, *labels], value)
        return (family for family in families.values() if family.samples)

    def _begin_again(self, name: str, model: Any) -> None:
        """Forgets the highest values if the model was compiled or loaded again."""
        counts = model if _is_graphed(model) else _forward_of(model)
        with self._lock:
            before = self._counted.get(name)
            if counts is not None and (before is None or before() is not counts):
                self._highest[name] = {}
                self._counted[name] = weakref.ref(counts)

    def _never_less(self, name: str, series: _Series, value: float) -> float:
        """The highest value so far: Prometheus takes a lower one for a restart.

        A call counts as compiled until a part of it runs eager, and a fallback until it
        turns out that the model itself had failed.
        """
        with self._lock:
            values = self._highest.setdefault(name, {})
            values[series] = max(value, values.get(series, value))
            return values[series]


def _families() -> dict[str, Metric]:
    families: dict[str, Metric] = {}
    for name, text in _COUNTERS.items():
        labels = ["model", "kind"] if name == "fallbacks" else ["model"]
        full_name = f"torchproof_{name}"
        families[name] = CounterMetricFamily(full_name, text, labels=labels)
    for name, text in _GAUGES.items():
        full_name = f"torchproof_{name}"
        families[name] = GaugeMetricFamily(full_name, text, labels=["model"])
    return families


def _is_graphed(model: Any) -> bool:
    return not isinstance(model, nn.Module) and isinstance(model, runtime.Graphed)


def _forward_of(model: Any) -> Any:
    """What counts the calls of a model; None if nothing does."""
    if runtime.uncompiled_reason(model) is None:
        return runtime.compiled_forward_of(model)
    return None


def _figures(model: Any) -> dict[_Series, float]:
    if _is_graphed(model):
        return _plain(calls=model.status().calls) | _graph(model.status().to_json())
    status = status_of(model)
    if status is None:
        return {}
    totals = status.totals
    # Zero of every kind: a counter that begins at 1 has not increased.
    fallbacks = dict.fromkeys(runtime.FALLBACK_KINDS, 0) | dict(totals.fallbacks)
    return (
        _plain(
            calls=status.calls,
            compiled_calls=status.compiled_calls,
            compiles=totals.compilations,
            recompiles=status.recompiles,
            compile_seconds=status.compile_s,
            stalls=totals.stalls,
            stall_seconds=totals.stall_s,
            graph_breaks=status.graph_breaks if totals.compilations else None,
        )
        | {("fallbacks", (kind,)): count for kind, count in fallbacks.items()}
        | _graph(status.graph)
    )


def _graph(status: Any) -> dict[_Series, float]:
    if status is None:  # no CUDA graph
        return {}
    return _plain(graph_hits=status["replays"], graph_recordings=status["recordings"])


def _plain(**values: float | None) -> dict[_Series, float]:
    return {(name, ()): value for name, value in values.items() if value is not None}
