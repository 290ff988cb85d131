"""Compares compiled code with eager on one call, and returns eager's answer.

`verified` takes the two callables and the arguments of a call. It runs the compiled
one, restores everything that this changed, then runs eager. The caller gets eager's
answer with its autograd graph, and buffers, arguments, `.grad` and random generators
are as eager left them. So each callable runs once, Python side effects happen twice,
and a mismatch does no harm. `verified` returns the answer and a `Verification`.
`CallVerifier` verifies the first call of a model, or every n-th.

The comparison covers outputs, tensors that either run changed (buffers, arguments),
and, if outputs require gradients, a vector-Jacobian product with a fixed random vector
for parameters and arguments. It also covers strides, `requires_grad` and shared memory
of outputs. `torch_private.comparison` has the tolerances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from torchproof.records import JsonObject, Keywords, one_line
from torchproof.runtime.forward_state import (
    SavedState,
    iterators,
    save_state,
    tensors_of,
)
from torchproof.runtime.status_report import Fallback
from torchproof.runtime.vector_jacobian import (
    Differentiated,
    Edges,
    are_sharded,
    edges_of,
    pull_back,
)
from torchproof.torch_private import comparison, frames, trees

if TYPE_CHECKING:
    from torchproof.runtime.interfaces import Forward

Verdict = Literal["same", "rounding", "not compared", "wrong", "failed"]
Call = Callable[..., Any]


@dataclass(frozen=True)
class Verification:
    """The verdict on one call; "failed" means that compiled code raised an error.

    `error` is the largest difference, relative to the largest element of the value that
    `where` names. `notes` name what was not compared, or could not be restored.
    """

    verdict: Verdict
    error: float | None = None
    where: str | None = None
    why: str = ""
    tolerance: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.verdict not in ("wrong", "failed")

    def to_json(self) -> JsonObject:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.verdict}{place}{why}"


def verified(
    eager: Call,
    compiled: Call,
    args: tuple[Any, ...],
    kwargs: Keywords,
    *,
    owner: nn.Module | None = None,
    train: bool = True,
) -> tuple[Any, Verification]:
    """Eager's answer, and whether the compiled callable gives the same.

    With `train`, gradients are compared if outputs require them. Errors of eager
    propagate; an error of the compiled callable becomes the verdict "failed".
    """
    notes: list[str] = []
    if read_on := iterators(owner, args, kwargs):
        why = f"{read_on[0]} is an iterator, which only one run can read"
        return eager(*args, **kwargs), Verification("not compared", why=why)
    if train and are_sharded(owner):
        train = False
        notes.append("gradients not compared: parameters are sharded")
    try:
        state = save_state(owner, args, kwargs)
    except Exception as error:
        why = f"the state before the call could not be saved: {_named(error)}"
        return eager(*args, **kwargs), Verification("not compared", why=why)
    notes += state.unprotected
    run = _Run(owner, args, dict(kwargs), train)
    not_restored: tuple[str, ...] = ()
    try:
        actual = run.of_compiled(compiled, state, notes)
    finally:
        not_restored = _not_restored(state)
    try:
        answer, expected, drawn = run.of_eager(eager, state)
    except torch.OutOfMemoryError:
        actual = _Outcome()  # frees the outputs of the compiled callable
    else:
        result = run.judged(actual, expected, drawn, notes)
        if not_restored:
            names = ", ".join(not_restored[:3])
            why = f"the call changed tensors that could not be copied before: {names}"
            result = Verification("not compared", why=why)
        return answer, replace(result, notes=tuple(notes))
    # Eager alone may fit into memory, as it does without verification.
    state.restore()
    why = "there is not enough memory for a comparison"
    return eager(*args, **kwargs), Verification("not compared", why=why)


def _not_restored(state: SavedState) -> tuple[str, ...]:
    """Restores the state before the call; names what could not be restored."""
    try:
        return state.restore()
    except Exception as error:  # an unknown kind of tensor
        return (_named(error),)


class CallVerifier:
    """Wraps what each call runs; verifies the first call, or every n-th."""

    def __init__(self, forward: Forward, run: Callable[..., Any]) -> None:
        self._forward = forward
        self._run = run
        self._unverified_calls = 0  # until the next verification

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._unverified_calls > 0 or not self._forward.has_compiled:
            self._unverified_calls -= 1
            return self._run(*args, **kwargs)
        every = self._forward.options.verify
        if every == "first":
            self._forward.run = self._run
        else:
            self._unverified_calls = int(every) - 1
        return self._verify(args, kwargs)

    def _verify(self, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """Verifies the call; with several ranks, a failure of one concerns all."""
        forward, telemetry = self._forward, self._forward.telemetry
        answer, verification = verified(
            forward.run_eager, self._run, args, kwargs, owner=forward.owner
        )
        if telemetry.was_eager and verification.verdict == "same":
            why = "part of the call ran eager, which is the same by definition"
            verification = replace(verification, why=why)
        telemetry.verified(verification.to_json())
        telemetry.ran_eager("verified")  # the caller gets eager's answer
        if not verification.passed:
            forward.go_eager(Fallback("verification", "the model", str(verification)))
        else:
            forward.agree_on_verification()
        return answer


@dataclass(frozen=True)
class _Outcome:
    """The results of one run without its autograd graph, or the error it raised."""

    output: comparison.Answers = field(default_factory=dict)
    forms: Mapping[str, comparison.Form] = field(default_factory=dict)
    changed: Mapping[str, Tensor] = field(default_factory=dict)
    gradients: Differentiated | None = None
    types: frozenset[torch.dtype] = frozenset()
    error: Exception | None = None
    unknown: str | None = None  # why the results could not be looked at


@dataclass(frozen=True)
class _Run:
    owner: nn.Module | None
    args: tuple[Any, ...]
    kwargs: Keywords
    train: bool

    def of_compiled(
        self, compiled: Call, state: SavedState, notes: list[str]
    ) -> _Outcome:
        left_out: dict[str, str] = {}
        try:
            edges, args, kwargs = edges_of(
                self.owner, self.args, self.kwargs, apart=True, left_out=left_out
            )
        except Exception as error:
            return _Outcome(unknown=_named(error))
        notes += [f"{label} not compared: {why}" for label, why in left_out.items()]
        try:
            output = compiled(*args, **kwargs)
        except Exception as error:
            if frames.is_graph_break(error):
                raise  # only `fullgraph=True` lets it through
            # The traceback's frames would keep the failed run's tensors alive.
            return _Outcome(error=error.with_traceback(None))
        try:
            forms = self._forms(output)
            changed = state.changed()
            gradients = pull_back(output, edges) if self.train else None
            parts = {
                label: part.clone()
                if isinstance(part, Tensor) and state.holds(part)
                else part
                for label, part in trees.values_of(output, "output").items()
            }
        except Exception as error:
            return _Outcome(unknown=_named(error))
        return _Outcome(parts, forms, changed, gradients)

    def of_eager(
        self, eager: Call, state: SavedState
    ) -> tuple[Any, _Outcome, set[str]]:
        """Eager's answer, its outcome to compare, and the random sources it used."""
        edges: Edges = {}
        why_not: str | None = None
        try:
            edges, _, _ = edges_of(self.owner, self.args, self.kwargs)
        except Exception as error:
            why_not = _named(error)
        output = eager(*self.args, **self.kwargs)
        drawn = state.rng.drawn_since(state.rng.current())
        if why_not is not None:
            return output, _Outcome(unknown=why_not), drawn
        try:
            return output, self._outcome_of_eager(output, edges, state), drawn
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # an unknown kind of tensor
            return output, _Outcome(unknown=_named(error)), drawn

    def _outcome_of_eager(
        self, output: Any, edges: Edges, state: SavedState
    ) -> _Outcome:
        from torchproof.torch_private import autograd_dtypes

        forms = self._forms(output)
        changed = state.changed()
        gradients = None
        if self.train:
            # Recomputing checkpointed parts in backward updates buffers once more.
            before = save_state(self.owner, self.args, self.kwargs, parameters=False)
            try:
                gradients = pull_back(output, edges, retain=True)
            finally:
                before.restore()
        return _Outcome(
            output=trees.values_of(output, "output"),
            forms=forms,
            changed=changed,
            gradients=gradients,
            types=frozenset(autograd_dtypes(list(trees.tensors(output, objects=True)))),
        )

    def _forms(self, output: Any) -> dict[str, comparison.Form]:
        """Strides, `requires_grad` and shared memory of the outputs of a call."""
        outputs = dict(trees.walk(output, "output", objects=True))
        inputs = dict(tensors_of(self.owner, self.args, self.kwargs))
        return comparison.forms_of(outputs, inputs)

    def judged(
        self, actual: _Outcome, expected: _Outcome, drawn: set[str], notes: list[str]
    ) -> Verification:
        if actual.error is not None:
            return Verification("failed", why=_named(actual.error))
        if unknown := actual.unknown or expected.unknown:
            return Verification("not compared", why=unknown)
        try:
            return self._compared(actual, expected, drawn, notes)
        except Exception as error:  # out of memory, or an unknown kind of tensor
            return Verification("not compared", why=_named(error))

    def _compared(
        self, actual: _Outcome, expected: _Outcome, drawn: set[str], notes: list[str]
    ) -> Verification:
        for label in {**expected.output, **actual.output}:
            if label not in actual.output or label not in expected.output:
                whose = "only eager" if label in expected.output else "only compiled"
                return Verification("wrong", where=label, why=f"{whose} code gives it")
            values = actual.output[label], expected.output[label]
            if all(isinstance(v, type) and issubclass(v, Iterator) for v in values):
                why = f"{label} is an iterator, which only the caller may read"
                return Verification("not compared", why=why)
            if difference := comparison.different_form(*values):
                return Verification("wrong", where=label, why=difference)
        for each in comparison.form_differences(actual.forms, expected.forms):
            if each.harmful:
                return Verification("wrong", where=each.where, why=each.why)
            notes.append(f"{each.where}: {each.why}")
        if random := _not_alike(drawn):
            why = f"the call draws random numbers from {random}"
            return Verification("not compared", why=why)
        tensors = _tensors(expected.output)
        types = expected.types | self._types(tensors)
        tolerance = comparison.tolerance_for(types, tensors)
        worst = comparison.worst(
            [
                comparison.compare(actual.output, expected.output, tolerance=tolerance),
                comparison.compare(
                    actual.changed, expected.changed, tolerance=tolerance
                ),
                *self._compared_gradients(actual, expected, types, notes),
            ]
        )
        limits = f"{tolerance.element:g} an element, {tolerance.whole:g} as a whole"
        return Verification(
            verdict=worst.verdict or "not compared",
            error=worst.max_rel_error,
            where=worst.where,
            why=worst.why,
            tolerance=f"{limits} ({_short(tolerance.type)})",
        )

    def _compared_gradients(
        self,
        actual: _Outcome,
        expected: _Outcome,
        types: AbstractSet[torch.dtype],
        notes: list[str],
    ) -> list[comparison.Comparison]:
        compiled, eager = actual.gradients, expected.gradients
        if compiled is None or eager is None:
            return []
        refused = eager.refused or (None if compiled.failed else compiled.refused)
        if refused:
            notes.append(f"gradients not compared: {refused}")
            return []
        if compiled.failed:
            why = f"backward of compiled code: {compiled.refused}"
            return [comparison.wrong(why, "gradients")]
        values = [each for each in eager.by_label.values() if each is not None]
        tolerance = comparison.tolerance_for(types, values, gradients=True)
        found = comparison.compare(
            compiled.by_label, eager.by_label, tolerance=tolerance
        )
        return [found]

    def _types(self, outputs: list[Tensor]) -> set[torch.dtype]:
        every = [each for _, each in tensors_of(self.owner, self.args, self.kwargs)]
        weights = every if self.owner is None else list(self.owner.parameters())
        return comparison.types_in_use(every + outputs, weights)


def _not_alike(drawn: set[str]) -> str | None:
    """A source of random numbers that compiled code and eager use differently."""
    from torchproof.torch_private import uses_eager_random

    if "numpy" in drawn:
        return "numpy"
    if "torch" in drawn and not uses_eager_random():
        return "torch, and fallback_random is off"
    return None


def _tensors(parts: comparison.Answers) -> list[Tensor]:
    return [part for part in parts.values() if isinstance(part, Tensor)]


def _short(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _named(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", 300)
