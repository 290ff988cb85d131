"""Everything that a run of a target shows: what an edit has to keep.

Outputs, gradients, changed inputs and buffers, attributes of modules, random streams,
printed and logged text, and what happens on inputs the target has not been called with.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import random
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from torchproof import torch_private
from torchproof.fixing.printed import collected_text
from torchproof.fixing.variations import variations
from torchproof.records import Namespace, whose
from torchproof.targets import Answers, Loaded, calls

_VARIATION_SECONDS = 5.0  # no new variation begins after this time
_PLAIN = (bool, int, float, complex, str, type(None))


@dataclass(frozen=True)
class Outcome:
    """What one call did: its answers, or the exception it raised."""

    answers: Answers | None = None
    exact: Answers | None = None  # in float64; only of the original
    error: str | None = None  # the type
    refused: bool = False  # the program's own `raise` or `assert` raised it


@dataclass(frozen=True)
class Behaviour:
    """What a pass over all calls showed."""

    answers: Answers
    random: tuple[str, ...]  # a digest of the random generators after each call
    text: tuple[str, ...]  # what was printed, logged and warned about
    attributes: Namespace = field(default_factory=dict)
    unseen: dict[str, Outcome] = field(default_factory=dict)


def behaviour(
    loaded: Loaded,
    fn: Callable[..., Any],
    *,
    train: bool,
    around: Callable[[int], AbstractContextManager[Any]] = nullcontext,
) -> Behaviour:
    """Runs all calls, each within `around(index)`."""
    digests: list[str] = []

    def step(index: int, call: Any) -> Any:
        with around(index):
            output = calls.invoke(fn, call, train=train)
        digests.append(random_digest())
        return output

    with collected_text() as text:
        answers = calls.answers(loaded, fn, train=train, step=step)
    return Behaviour(
        answers,
        random=tuple(digests),
        text=tuple(text),
        attributes=attributes_of(loaded.fn),
    )


def with_unseen(
    shown: Behaviour,
    target: Callable[[], tuple[Loaded, Callable[..., Any]]],
    *,
    train: bool,
    names: Collection[str] | None = None,
) -> Behaviour:
    """Adds what variations of the calls do: all, or those that are named.

    `target()` gives the target and what to call, before each variation.
    """
    unseen: dict[str, Outcome] = {}
    until = time.monotonic() + _VARIATION_SECONDS
    for name, call in _named_variations(target()[0]):
        if names is not None and name not in names:
            continue
        if time.monotonic() > until:
            break
        with collected_text():
            unseen[name] = outcome(*target(), call, train=train)
    return dataclasses.replace(shown, unseen=unseen)


def unseen_answers(name: str, loaded: Loaded, *, train: bool) -> Answers:
    """The answers of the target to one variation of its calls."""
    call = dict(_named_variations(loaded))[name]
    one = dataclasses.replace(loaded, calls=[call], before_call=None)
    return calls.answers(one, loaded.fn, train=train)


def _named_variations(loaded: Loaded) -> Iterator[tuple[str, Any]]:
    for index in sorted({0, len(loaded.calls) - 1}):
        for kind, call in variations(loaded.calls[index]):
            yield f"{kind} in call {index}", call


def outcome(
    loaded: Loaded, fn: Callable[..., Any], call: Any, *, train: bool
) -> Outcome:
    """What one call does that the target does not make."""
    one = dataclasses.replace(loaded, calls=[call], before_call=None)
    try:
        return Outcome(calls.answers(one, fn, train=train))
    except Exception as error:
        return Outcome(error=type(error).__name__, refused=_is_refusal(error))


def _is_refusal(error: BaseException) -> bool:
    """Whether a `raise` or `assert` of the program raised it, not an operator."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    words = (last.line or "") if last else ""
    if last is not None and last.filename.endswith(
        "torchproof/runtime/graph_effects.py"
    ):
        return True
    return (
        last is not None
        and whose(last.filename) in {"user", "library"}
        and words.startswith(("raise", "assert"))
    )


def random_digest() -> str:
    """Digests of the states of all random generators: of torch, and of others."""
    states: list[Any] = [torch.get_rng_state().numpy().tobytes()]
    # Asking for its state would initialise CUDA, which a fork cannot do.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state().numpy().tobytes())
    return f"{_digest(states)} {digest_outside_torch()}"


def digest_outside_torch() -> str:
    """Of the states of the generators of numpy and Python."""
    return _digest(
        [pickle.dumps(numpy.random.get_state()), pickle.dumps(random.getstate())]
    )


def _digest(states: list[bytes]) -> str:
    return hashlib.sha256(b"".join(states)).hexdigest()[:16]


def draws_outside_torch(digests: Iterable[str]) -> bool:
    """Whether calls with these digests drew numbers from numpy or Python."""
    for index, digest in enumerate(digests):
        calls.seed(index)  # as before the call
        if not digest.endswith(digest_outside_torch()):
            return True
    return False


def attributes_of(fn: Any) -> Namespace:
    """Plain values that the target's modules keep, such as counters and histories."""
    return dict(_attributes(fn))


def _attributes(fn: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(fn, torch.nn.Module):
        return
    for path, module in fn.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_") or name == "training":
                continue
            label = f"{path}.{name}" if path else name
            for where, leaf in torch_private.trees.leaves(value, label):
                if isinstance(leaf, torch.Tensor):
                    yield where, leaf.detach().to("cpu", copy=True)
                elif isinstance(leaf, numpy.generic):
                    yield where, leaf.item()  # an edit may compute it in Python
                elif isinstance(leaf, _PLAIN):
                    yield where, leaf
