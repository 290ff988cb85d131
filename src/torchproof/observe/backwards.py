"""Counts the backwards through the outputs of compiled graphs.

Takes what a graph returned. Adds a hook to the autograd node behind it, which neither
the tensor nor its values show.
"""

from __future__ import annotations

from typing import Any

_MOST_OUTPUTS = 8


class Backwards:
    """The backwards of each graph, and those that other graphs ran before."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        # Backwards that ran after another graph had begun since their forward.
        self.late: dict[str, int] = {}
        self._runs = 0

    def begin(self) -> None:
        """A graph begins to run."""
        self._runs += 1

    def watch(self, compile_id: str, outputs: Any) -> None:
        """Counts the backward of these outputs, once."""
        run = self._runs
        done: list[bool] = []

        def note(*gradients: Any) -> None:
            if not done:
                done.append(True)
                self.counts[compile_id] = self.counts.get(compile_id, 0) + 1
                if self._runs > run:
                    self.late[compile_id] = self.late.get(compile_id, 0) + 1

        several = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
        nodes = (getattr(output, "grad_fn", None) for output in several)
        for node in [node for node in nodes if node is not None][:_MOST_OUTPUTS]:
            node.register_prehook(note)
