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

# The tolerance: this many times eager's own distance from float64, plus this many
# epsilons of the dtype for roundings in another order.
EAGER_ERRORS = 8
ROUNDINGS = 64
SHORT_ROUNDINGS = 8  # for dtypes of 16 bits and less
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
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and (
            one == other or not isinstance(one, (bool, int, float, complex, str))
        )
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and torch.equal(one.nan_to_num(), other.nan_to_num())


def differences(actual, eager, exact):
    """Returns label, kind, relative error and description of each wrong result."""
    wrong = []
    for label in {**eager, **actual}:
        if label not in actual or label not in eager:
            only = "eager" if label in eager else "compiled code"
            wrong.append((label, "form", None, f"only {only} returns it"))
            continue
        mine, right = actual[label], eager[label]
        if not isinstance(mine, torch.Tensor) or not isinstance(right, torch.Tensor):
            if not is_equal(mine, right) and type(mine) in (bool, int, float, str):
                text = f"it is {mine!r}, in eager {right!r}"
                wrong.append((label, "value", None, text))
            continue
        differing = difference(mine, right, exact.get(label))
        if differing is not None:
            wrong.append((label, *differing))
    return wrong


def difference(mine, right, exact):
    """Returns kind, relative error and description of a wrong tensor, or None."""
    for name in ("dtype", "shape"):
        one, other = getattr(mine, name), getattr(right, name)
        if one != other:
            return "form", None, f"its {name} is {one}, in eager {other}"
    if not right.is_floating_point() and not right.is_complex():
        if torch.equal(mine, right):
            return None
        return "value", None, f"{share(mine != right)} differ, {example(mine, right)}"
    fits = isinstance(exact, torch.Tensor) and exact.shape == right.shape
    m, r = as_doubles(mine), as_doubles(right)
    x = as_doubles(exact) if fits else r
    if bool((x.isnan() & ~r.isnan()).any()):
        x = r
    lost = m.isnan() & ~r.isnan()
    if bool(lost.any()):
        return "nan", None, f"NaN where eager has none, in {share(lost)}"
    infinite = (m != r) & (m.isinf() | r.isinf()) & ~r.isnan()
    if x is not r:
        overflows = (x.abs() >= 0.999 * torch.finfo(right.dtype).max) & (m * x > 0)
        infinite &= ~torch.where(m.isinf(), overflows, x.isfinite())
    if bool(infinite.any()):
        text = f"infinity on one side only, in {share(infinite)}"
        return "infinity", None, f"{text}, {example(m, r, infinite)}"
    return beyond_tolerance(m, r, x, torch.finfo(right.dtype))


def beyond_tolerance(m, r, x, kind):
    size = torch.where(x.isfinite(), x.abs(), 0.0)
    error = finite(m - x)
    many = (ROUNDINGS if kind.bits > 16 else SHORT_ROUNDINGS) * kind.eps
    typical = size.square().mean().sqrt() if size.numel() else 0.0
    allowed = many * (size + typical) + kind.tiny
    if x is not r and size.numel():
        allowed = allowed + EAGER_ERRORS * finite(r - x).amax()
    wrong = (error > allowed) & (m != r) & ~r.isnan()
    if not bool(wrong.any()):
        return None
    largest = float(size.amax())
    worst = float(torch.where(wrong, error, 0.0).amax())
    text = f"{share(wrong)} are beyond the tolerance, {example(m, r, wrong)}"
    return "value", worst / largest if largest else None, text


def as_doubles(values):
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj().to(torch.complex128))
    return values.to(torch.float64).flatten()


def finite(values):
    return torch.where(values.isfinite(), values.abs(), 0.0)


def share(where):
    return f"{int(where.sum())} of {where.numel()} elements"


def example(mine, right, where=None):
    """Describes the first element that differs."""
    where = mine != right if where is None else where
    at = int(where.flatten().int().argmax())
    one, other = mine.flatten()[at].item(), right.flatten()[at].item()
    return f"element {at} is {one:.6g}, in eager {other:.6g}"
