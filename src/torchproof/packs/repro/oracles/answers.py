"""Recognises results of compiled code that differ from eager by more than rounding."""

from __future__ import annotations

import torch

from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    leaves,
    seed_all,
)
from torchproof.torch_private import comparison

INFINITE = ("nan", "infinity")


def run_oracle(program, expected):
    """Expects `how` the results differ, and the relative `error` that was seen or None.

    With `random`, results that depend on the seed are compared too. With `later`, the
    first call is right and a later one is wrong.
    """
    with torch.compiler.set_stance("force_eager"):
        eager = results_of(program)
        reseeded = results_of(program, seeds=1000)
    exact = float64_results(program)
    actual = results_of(program, wrap=True)
    if not expected.get("random"):
        steady = [k for k in eager if is_equal(eager[k], reseeded.get(k))]
        eager = {k: eager[k] for k in steady}
        actual = {k: v for k, v in actual.items() if k in steady or k not in reseeded}
    return verdict(differences(actual, eager, exact), expected)


def verdict(wrong, expected):
    if not wrong:
        return NONE, "compiled code gives the same results as eager"
    # An infinity inside the program may be NaN or another number at its end.
    inside = expected["how"] in INFINITE
    kinds = (*INFINITE, "value") if inside else (expected["how"],)
    alike = [item for item in wrong if item[1] in kinds]
    if expected.get("later") and any(label.startswith("call 0") for label, *_ in wrong):
        return OTHER, f"the first call is wrong too, {describe(wrong[0])}"
    if not alike:
        return OTHER, f"wrong in another way, {describe(wrong[0])}"
    worst = max(alike, key=lambda item: item[2] or 0.0)
    least = 0.01 * (expected.get("error") or 0.0)
    if worst[2] is not None and worst[2] < least:
        return OTHER, f"the error is much smaller than stated, {describe(worst)}"
    return SAME, describe(worst)


def describe(item):
    label, _, error, text = item
    size = "" if error is None else f" (off by {error:.2g} of the largest element)"
    return f"{label}: {text}{size}"


def results_of(program, *, wrap=False, seeds=0, change=None):
    """Returns outputs, gradients, arguments and buffers after each call, by name."""
    fn, calls = program.build()
    if change is not None:
        fn, calls = change(fn), change(calls)
    results = {}

    def before(original, index):
        seed_all(program.settings["seed"] + seeds + index)
        if program.before_call is not None:
            program.before_call(original, index)

    def after(index, output):
        for what, value in (("output", output), ("argument", calls[index])):
            for number, leaf in enumerate(leaves(value)):
                results[f"call {index} {what} {number}"] = copy_of(leaf)
        if program.settings["train"]:
            results.update(gradients(fn, calls[index], index))

    compiled = program.compile(fn) if wrap else fn
    program.call_all(compiled, fn, calls, before_call=before, after=after)
    if isinstance(fn, torch.nn.Module):
        results.update((f"buffer {k}", copy_of(v)) for k, v in fn.named_buffers())
    return results


def gradients(fn, call, index):
    if isinstance(fn, torch.nn.Module):
        for name, parameter in fn.named_parameters():
            yield f"call {index} gradient of {name}", copy_of(parameter.grad)
    for number, leaf in enumerate(leaves(call)):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_leaf:
            yield f"call {index} gradient of argument {number}", copy_of(leaf.grad)


def copy_of(leaf):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    dense = leaf.detach() if leaf.layout is torch.strided else leaf.detach().to_dense()
    return dense.to("cpu", copy=True)


def float64_results(program):
    """Returns the results in float64; {} if the program does not run in float64."""

    def change(value):
        if isinstance(value, torch.nn.Module):
            return value.double()
        if isinstance(value, torch.Tensor):
            if not value.is_floating_point():
                return value
            return value.detach().double().requires_grad_(value.requires_grad)
        if isinstance(value, dict):
            return {key: change(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(change, value))
        return value

    try:
        with torch.compiler.set_stance("force_eager"):
            return results_of(program, change=change)
    except Exception:  # many programs name their dtypes; then eager is the reference
        return {}


def is_equal(one, other):
    return comparison.compare_value(one, other).verdict in ("same", None)


def differences(actual, eager, exact):
    """Returns label, kind, relative error and description of each wrong result."""
    wrong: list = []
    for label in {**eager, **actual}:
        if label not in actual or label not in eager:
            only = "eager" if label in eager else "compiled code"
            wrong.append((label, "form", None, f"only {only} returns it"))
            continue
        one = comparison.compare_value(actual[label], eager[label], exact.get(label))
        if one.verdict == "wrong":
            wrong.append((label, one.how, one.max_rel_error, one.why))
    return wrong
