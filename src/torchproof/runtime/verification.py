"""Compiled code checked against eager on one call, which gets eager's answer.

In come the two callables and the arguments of a call. The compiled one runs first, then
all it changed is put back, then eager runs: the caller gets eager's answer, with its
autograd graph, and finds buffers, arguments, `.grad` and random generators as eager
left them. So each runs once, Python side effects happen twice, and a mismatch has not
cost anything. Out go the answer and a `Verification`.

Compared are outputs, tensors that either run changed (buffers, arguments), and, where
outputs require gradients, a vector-Jacobian product with a fixed random vector, with
regard to parameters and arguments. `likeness` has the tolerances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchproof.records import one_line
from torchproof.runtime.forward_state import Saved, saved, tensors_of
from torchproof.runtime.tensors import compare
from torchproof.runtime.tensors.compare import Likeness, parts_of
from torchproof.runtime.tensors.tree import walk
from torchproof.runtime.vector_jacobian import (
    Differentiated,
    are_sharded,
    edges_of,
    pull_back,
)

Verdict = Literal["same", "rounding", "not compared", "wrong", "failed"]
Call = Callable[..., Any]


@dataclass(frozen=True)
class ReproInput:
    """A tensor among the inputs, so that one like it can be made; else its value."""

    label: str
    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    dtype: str | None = None
    device: str | None = None
    requires_grad: bool = False
    value: str | None = None


@dataclass(frozen=True)
class Repro:
    """What a repro of a wrong answer needs to know of the call."""

    inputs: tuple[ReproInput, ...]
    random: Mapping[str, str]  # the seed, and fingerprints of the generators' states
    modes: Mapping[str, str]


@dataclass(frozen=True)
class Verification:
    """The verdict on one call; "failed" means that compiled code raised an error.

    `error` is the largest relative to the largest element of what `where` names.
    `notes` say what else was not compared, or not protected.
    """

    verdict: Verdict
    error: float | None = None
    where: str | None = None
    why: str = ""
    tolerance: str | None = None
    notes: tuple[str, ...] = ()
    repro: Repro | None = None

    @property
    def passed(self) -> bool:
        return self.verdict not in ("wrong", "failed")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        told = f": {self.why}" if self.why else ""
        return f"{self.verdict}{place}{told}"


def verified(
    eager: Call,
    compiled: Call,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    owner: nn.Module | None = None,
    train: bool = True,
) -> tuple[Any, Verification]:
    """Eager's answer, and whether the compiled callable gives the same.

    With `train`, gradients are compared if outputs require them. What eager raises is
    raised; what the compiled callable raises is in the verdict.
    """
    notes: list[str] = []
    if train and are_sharded(owner):
        train = False
        notes.append("gradients not compared: parameters are sharded")
    try:
        state = saved(owner, args, kwargs)
    except Exception as error:
        why = f"the state before the call could not be saved: {_named(error)}"
        return eager(*args, **kwargs), Verification("not compared", why=why)
    notes += state.unprotected
    run = _Run(owner, args, dict(kwargs), train)
    try:
        given = run.of_compiled(compiled, state)
    finally:
        lost = state.restore()
    try:
        answer, expected, drawn = run.of_eager(eager, state)
    except torch.OutOfMemoryError:
        given = _Outcome()
    else:
        found = run.judged(given, expected, drawn, notes)
        if lost:
            why = f"the call changed what could not be copied: {', '.join(lost[:3])}"
            found = Verification("not compared", why=why)
        repro = None if found.passed else _repro(args, kwargs, state)
        return answer, replace(found, notes=tuple(notes), repro=repro)
    # Alone it may fit into memory, as it does without verification.
    state.restore()
    why = "memory does not suffice for a comparison"
    return eager(*args, **kwargs), Verification("not compared", why=why)


@dataclass(frozen=True)
class _Outcome:
    """What one run gave, with nothing of its autograd graph; or the error it raised."""

    output: Mapping[str, Any] = field(default_factory=dict)
    differentiable: frozenset[str] = frozenset()  # outputs that require gradients
    changed: Mapping[str, Tensor] = field(default_factory=dict)
    gradients: Differentiated | None = None
    types: frozenset[torch.dtype] = frozenset()
    error: Exception | None = None


@dataclass(frozen=True)
class _Run:
    owner: nn.Module | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    train: bool

    def of_compiled(self, compiled: Call, state: Saved) -> _Outcome:
        edges, args, kwargs = edges_of(self.owner, self.args, self.kwargs, apart=True)
        try:
            output = compiled(*args, **kwargs)
            changed = state.changed()
            gradients = pull_back(output, edges) if self.train else None
        except Exception as error:
            # Its frames would keep everything the failed run has allocated.
            return _Outcome(error=error.with_traceback(None))
        parts = {
            label: part.clone()
            if isinstance(part, Tensor) and state.holds(part)
            else part
            for label, part in parts_of(output, "output").items()
        }
        return _Outcome(parts, _differentiable(output), changed, gradients)

    def of_eager(self, eager: Call, state: Saved) -> tuple[Any, _Outcome, set[str]]:
        """Its answer as it is, the same to compare, and what randomness it drew."""
        from torchproof.torch_private import autograd_dtypes

        edges, _, _ = edges_of(self.owner, self.args, self.kwargs)
        output = eager(*self.args, **self.kwargs)
        drawn = state.chance.moved(state.chance.again())
        changed, gradients = state.changed(), None
        if self.train:
            # Recomputing what was checkpointed updates buffers once more.
            before = saved(self.owner, self.args, self.kwargs, parameters=False)
            try:
                gradients = pull_back(output, edges, retain=True)
            finally:
                before.restore()
        parts = parts_of(output, "output")
        ends = [part for _, part in walk(output, "") if isinstance(part, Tensor)]
        return (
            output,
            _Outcome(
                parts,
                _differentiable(output),
                changed,
                gradients,
                frozenset(autograd_dtypes(ends)),
            ),
            drawn,
        )

    def judged(
        self, given: _Outcome, expected: _Outcome, drawn: set[str], notes: list[str]
    ) -> Verification:
        if given.error is not None:
            return Verification("failed", why=_named(given.error))
        try:
            return self._compared(given, expected, drawn, notes)
        except Exception as error:  # for memory, or on a tensor of an unknown kind
            return Verification("not compared", why=_named(error))

    def _compared(
        self, given: _Outcome, expected: _Outcome, drawn: set[str], notes: list[str]
    ) -> Verification:
        form = compare.compare_parts(given.output, expected.output, None)
        if form.verdict == "wrong":
            return _verification(form)
        for label in sorted(expected.differentiable - given.differentiable):
            why = "it does not require a gradient, as eager's does"
            return Verification("wrong", where=label, why=why)
        if random := _not_alike(drawn):
            why = f"the call draws random numbers from {random}"
            return Verification("not compared", why=why)
        values = _tensors(expected.output)
        types = expected.types | self._types(values)
        allowed = compare.allowance(types, values)
        found = [
            compare.compare_parts(given.output, expected.output, allowed),
            compare.compare_parts(given.changed, expected.changed, allowed),
        ]
        found += self._judged_gradients(given, expected, types, notes)
        worst = max(found, key=lambda one: (_ORDER[one.verdict], one.error or 0.0))
        told = f"{allowed.element:g} an element, {allowed.whole:g} as a whole"
        return _verification(worst, f"{told} ({_short(allowed.type)})")

    def _judged_gradients(
        self,
        given: _Outcome,
        expected: _Outcome,
        types: AbstractSet[torch.dtype],
        notes: list[str],
    ) -> list[Likeness]:
        mine, others = given.gradients, expected.gradients
        if mine is None or others is None:
            return []
        if refused := others.refused or (mine.refused if not mine.failed else None):
            notes.append(f"gradients not compared: {refused}")
            return []
        if mine.failed:
            why = f"backward of compiled code: {mine.refused}"
            return [Likeness("wrong", None, "gradients", why)]
        values = [each for each in others.found.values() if each is not None]
        allowed = compare.allowance(types, values, gradients=True)
        return [compare.compare_parts(mine.found, others.found, allowed)]

    def _types(self, outputs: list[Tensor]) -> set[torch.dtype]:
        every = [each for _, each in tensors_of(self.owner, self.args, self.kwargs)]
        weights = every if self.owner is None else list(self.owner.parameters())
        return compare.types_in_use(every + outputs, weights)


_ORDER = {"same": 0, "rounding": 1, "wrong": 2}


def _verification(found: Likeness, tolerance: str | None = None) -> Verification:
    return Verification(
        found.verdict, found.error, found.where, found.why, tolerance=tolerance
    )


def _not_alike(drawn: set[str]) -> str | None:
    """The source of random numbers that compiled code draws otherwise than eager."""
    from torchproof.torch_private import uses_eager_random

    if "numpy" in drawn:
        return "numpy"
    if "torch" in drawn and not uses_eager_random():
        return "torch, and fallback_random is off"
    return None


def _tensors(parts: Mapping[str, Any]) -> list[Tensor]:
    return [part for part in parts.values() if isinstance(part, Tensor)]


def _differentiable(output: Any) -> frozenset[str]:
    return frozenset(
        label
        for label, part in walk(output, "output")
        if isinstance(part, Tensor) and part.requires_grad
    )


def _repro(args: Any, kwargs: Mapping[str, Any], state: Saved) -> Repro:
    parts = [part for i, value in enumerate(args) for part in walk(value, f"input {i}")]
    for name, value in kwargs.items():
        parts += walk(value, f"input {name}")
    simple = (bool, int, float, complex, str, type(None))
    modes = {
        "grad": str(torch.is_grad_enabled()),
        "inference": str(torch.is_inference_mode_enabled()),
        "autocast": str(torch.is_autocast_enabled()),
        "threads": str(torch.get_num_threads()),
    }
    inputs = [
        _repro_input(label, value)
        for label, value in parts
        if isinstance(value, (Tensor, *simple))
    ]
    return Repro(tuple(inputs), state.chance.summary(), modes)


def _repro_input(label: str, value: Any) -> ReproInput:
    if not isinstance(value, Tensor):
        return ReproInput(label, value=one_line(repr(value), 80))
    strided = value.layout is torch.strided
    return ReproInput(
        label,
        tuple(value.shape),
        tuple(value.stride()) if strided else None,
        _short(value.dtype),
        str(value.device),
        value.requires_grad,
    )


def _short(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _named(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", 300)
