"""Answers of compiled code that eager does not give, beyond what rounding excuses."""

from __future__ import annotations

import torch

from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    call_all,
    compiled,
    leaves,
    made,
    one_line,
    otherwise,
    seed_all,
)

# How many times eager's own distance from float64 is excused, and, in epsilons of the
# type, what many roundings in another order add.
EXCUSE, ROUNDINGS, SHORT_ROUNDINGS = 8, 64, 8
INFINITE = ("nan", "infinity")


def run_oracle(make, settings, expected, before_call=None):
    """Expected: `how` it differs, and the `error` that was seen, relative or None.

    With `random`, answers that depend on the seed are compared as well; with `later`,
    the first call is right and a later one is wrong.
    """
    try:
        with torch.compiler.set_stance("force_eager"):
            eager = answers(make, settings, before_call)
            again = answers(make, settings, before_call, seeds=1000)
    except Exception as error:
        return OTHER, f"it fails in eager: {one_line(error)}"
    exact = doubled(make, settings, before_call)
    try:
        given = answers(make, settings, before_call, wrap=True)
    except Exception as error:
        return otherwise(error, make, settings, before_call)
    if not expected.get("random"):
        steady = [k for k in eager if is_equal(eager[k], again.get(k))]
        eager = {k: eager[k] for k in steady}
        given = {k: v for k, v in given.items() if k in steady or k not in again}
    return verdict(differences(given, eager, exact), expected)


def verdict(found, expected):
    if not found:
        return NONE, "compiled code gives eager's answers"
    # What is infinite in the middle is NaN or another number at a program's end.
    inside = expected["how"] in INFINITE
    same = (*INFINITE, "value") if inside else (expected["how"],)
    alike = [item for item in found if item[1] in same]
    if expected.get("later") and any(label.startswith("call 0") for label, *_ in found):
        return OTHER, f"the first call is wrong too, {told(found[0])}"
    if not alike:
        return OTHER, f"wrong in another way, {told(found[0])}"
    worst = max(alike, key=lambda item: item[2] or 0.0)
    least = 0.01 * (expected.get("error") or 0.0)
    if worst[2] is not None and worst[2] < least:
        return OTHER, f"wrong by much less than is stated, {told(worst)}"
    return SAME, told(worst)


def told(item):
    label, _, error, text = item
    size = "" if error is None else f" (off by {error:.2g} of the largest element)"
    return f"{label}: {text}{size}"


def answers(make, settings, before_call, *, wrap=False, seeds=0, change=None):
    """Outputs, gradients and what was changed in place, of each call, by name."""
    fn, calls = made(make, settings)
    if change is not None:
        fn, calls = change(fn), change(calls)
    found = {}

    def before(original, index):
        seed_all(settings["seed"] + seeds + index)
        if before_call is not None:
            before_call(original, index)

    def after(index, output):
        for what, value in (("output", output), ("argument", calls[index])):
            for number, leaf in enumerate(leaves(value)):
                found[f"call {index} {what} {number}"] = copied(leaf)
        if settings["train"]:
            found.update(gradients(fn, calls[index], index))

    called = compiled(fn, settings) if wrap else fn
    call_all(called, fn, calls, settings, before_call=before, after=after)
    if isinstance(fn, torch.nn.Module):
        found.update((f"buffer {k}", copied(v)) for k, v in fn.named_buffers())
    return found


def gradients(fn, call, index):
    if isinstance(fn, torch.nn.Module):
        for name, parameter in fn.named_parameters():
            yield f"call {index} gradient of {name}", copied(parameter.grad)
    for number, leaf in enumerate(leaves(call)):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_leaf:
            yield f"call {index} gradient of argument {number}", copied(leaf.grad)


def copied(leaf):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    dense = leaf.detach() if leaf.layout is torch.strided else leaf.detach().to_dense()
    return dense.to("cpu", copy=True)


def doubled(make, settings, before_call):
    """The same program in float64; nothing where it cannot be computed so."""

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
            return answers(make, settings, before_call, change=change)
    except Exception:  # many programs name their types; eager stands in then
        return {}


def is_equal(one, other):
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and (
            one == other or not isinstance(one, (bool, int, float, complex, str))
        )
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and torch.equal(one.nan_to_num(), other.nan_to_num())


def differences(given, eager, exact):
    """Name, way, relative error and words of everything that is wrong."""
    found = []
    for label in {**eager, **given}:
        if label not in given or label not in eager:
            only = "eager" if label in eager else "compiled code"
            found.append((label, "form", None, f"only {only} gives it"))
            continue
        mine, right = given[label], eager[label]
        if not isinstance(mine, torch.Tensor) or not isinstance(right, torch.Tensor):
            if not is_equal(mine, right) and type(mine) in (bool, int, float, str):
                text = f"it is {mine!r}, eager gives {right!r}"
                found.append((label, "value", None, text))
            continue
        seen = difference(mine, right, exact.get(label))
        if seen is not None:
            found.append((label, *seen))
    return found


def difference(mine, right, exact):
    """Way, relative error and words of one wrong tensor; None where it is right."""
    for name in ("dtype", "shape"):
        one, other = getattr(mine, name), getattr(right, name)
        if one != other:
            return "form", None, f"its {name} is {one}, eager gives {other}"
    if not right.is_floating_point() and not right.is_complex():
        if torch.equal(mine, right):
            return None
        return "value", None, f"{share(mine != right)} differ, {example(mine, right)}"
    fits = isinstance(exact, torch.Tensor) and exact.shape == right.shape
    m, r = doubles(mine), doubles(right)
    x = doubles(exact) if fits else r
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
    return too_far(m, r, x, torch.finfo(right.dtype))


def too_far(m, r, x, kind):
    size = torch.where(x.isfinite(), x.abs(), 0.0)
    error = finite(m - x)
    many = (ROUNDINGS if kind.bits > 16 else SHORT_ROUNDINGS) * kind.eps
    typical = size.square().mean().sqrt() if size.numel() else 0.0
    allowed = many * (size + typical) + kind.tiny
    if x is not r and size.numel():
        allowed = allowed + EXCUSE * finite(r - x).amax()
    wrong = (error > allowed) & (m != r) & ~r.isnan()
    if not bool(wrong.any()):
        return None
    largest = float(size.amax())
    worst = float(torch.where(wrong, error, 0.0).amax())
    text = f"{share(wrong)} too far off, {example(m, r, wrong)}"
    return "value", worst / largest if largest else None, text


def doubles(values):
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj().to(torch.complex128))
    return values.to(torch.float64).flatten()


def finite(values):
    return torch.where(values.isfinite(), values.abs(), 0.0)


def share(where):
    return f"{int(where.sum())} of {where.numel()} elements"


def example(mine, right, where=None):
    """The first element that differs, on both sides."""
    where = mine != right if where is None else where
    at = int(where.flatten().int().argmax())
    one, other = mine.flatten()[at].item(), right.flatten()[at].item()
    return f"element {at} is {one:.6g}, eager gives {other:.6g}"
