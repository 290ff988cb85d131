"""Divides the layers of a model among ranks, by a plan.

A plan maps patterns of module names, such as `blocks.*.mlp.0`, to the name of a style
or to a `ParallelStyle` of torch. It is an attribute `tensor_parallel_plan` of the model
or of the factory's file, or the `_tp_plan` of a model of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchproof.records import UserError

ATTRIBUTE = "tensor_parallel_plan"
Styles = Mapping[str, Any]  # of torch, by the names of modules


@dataclass(frozen=True)
class _Plan:
    styles: Styles
    origin: str
    # Plans of transformers name layers that only some configurations have.
    is_complete: bool = True


def divide(model: Any, mesh: Any, plan: Styles | None = None) -> None:
    """Replaces the parameters that the plan names by the parts of this rank.

    Raises `UserError` if there is no plan, or the ranks cannot divide the layers.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    found = _plan_of(model, plan)
    _assert_divides(model, mesh.size())
    tied = tied_names(model)
    styles = {
        name: _style(model, found, name, style, ranks=mesh.size())
        for name, style in _matched(model, found)
    }
    if not styles:
        raise UserError(f"{found.origin} names no module of {type(model).__name__}")
    for name, style in styles.items():
        try:
            parallelize_module(model.get_submodule(name), mesh, style)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"{found.origin}: {name} fails: {reason}") from error
    for names in tied:
        tie(model, names, found.origin)


def _plan_of(model: Any, plan: Styles | None) -> _Plan:
    name = type(model).__name__
    own = getattr(model, ATTRIBUTE, None) if plan is None else plan
    if own is not None:
        if not isinstance(own, Mapping):
            kind = type(own).__name__
            raise UserError(
                f"{ATTRIBUTE} is a {kind}: it must map module names to styles, such as"
                ' {"blocks.*.mlp.0": "colwise", "blocks.*.mlp.2": "rowwise"}'
            )
        return _Plan(own, ATTRIBUTE)
    theirs = getattr(model, "_tp_plan", None)
    if isinstance(theirs, Mapping) and theirs:
        return _Plan(theirs, f"_tp_plan of {name}", is_complete=False)
    raise UserError(
        f"{name} has no plan for tensor parallelism: define {ATTRIBUTE} = {{...}} in"
        ' its class or file, such as {"blocks.*.mlp.0": "colwise"}'
    )


def _matched(model: Any, plan: _Plan) -> Iterator[tuple[str, Any]]:
    modules = [name for name, _ in model.named_modules()]
    parameters = [name for name, _ in model.named_parameters()]
    for pattern, style in plan.styles.items():
        names = [name for name in modules if _matches(name, pattern)]
        yield from ((name, style) for name in names)
        if not names and any(_matches(name, pattern) for name in parameters):
            raise UserError(
                f"{plan.origin}: {pattern} is a parameter, which torch cannot divide"
                " by itself: only layers are supported"
            )
        if not names and plan.is_complete:
            raise UserError(
                f"{plan.origin}: {pattern} matches no module of {type(model).__name__}"
            )


def _matches(name: str, pattern: str) -> bool:
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(
        pattern in (part, "*") for part, pattern in zip(parts, patterns, strict=True)
    )


def _style(model: Any, plan: _Plan, name: str, style: Any, *, ranks: int) -> Any:
    """The style of a layer as an object of torch."""
    import torch
    from torch.distributed.tensor.parallel import ParallelStyle

    if isinstance(style, ParallelStyle):
        return style
    known = _styles()
    if not isinstance(style, str) or style not in known:
        raise UserError(
            f"{plan.origin}: {name} has the style {style!r}, which is not supported:"
            f" use one of {', '.join(known)}, or a ParallelStyle of torch"
        )
    layer = model.get_submodule(name)
    if not isinstance(layer, torch.nn.Linear | torch.nn.Embedding):
        raise UserError(
            f"{plan.origin}: {name} is a {type(layer).__name__}: {style} divides only"
            " nn.Linear and nn.Embedding"
        )
    # Torch pads what it divides and gathers itself; other code sees the parts.
    if style in {"colwise", "rowwise"} and isinstance(layer, torch.nn.Linear):
        size = layer.out_features if style == "colwise" else layer.in_features
        if size % ranks:
            raise UserError(
                f"{plan.origin}: {ranks} ranks cannot divide the {size} features of"
                f" {name} ({style}): choose another number of ranks"
            )
    return known[style]


def _styles() -> dict[Any, Any]:
    """Styles by their names in plans, which are those of transformers.

    Column-wise layers divide their outputs, row-wise ones their inputs. A pair of both
    needs one sum over the ranks, after the second.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    gathers = ColwiseParallel(output_layouts=Replicate())
    splits = RowwiseParallel(input_layouts=Replicate())
    return {
        "colwise": ColwiseParallel(),
        "rowwise": RowwiseParallel(),
        "colwise_gather_output": gathers,
        "rowwise_split_input": splits,
        "embedding_colwise": gathers,
        "embedding_rowwise": splits,
        # Names in earlier versions of transformers.
        "colwise_rep": gathers,
        "rowwise_rep": splits,
    }


def _assert_divides(model: Any, ranks: int) -> None:
    """Raises `UserError` if a rank would get a part of an attention head."""
    config = getattr(model, "config", None)
    counts = (
        (getattr(model, "tensor_parallel_heads", None), "attention heads"),
        (getattr(config, "num_attention_heads", None), "attention heads"),
        (getattr(config, "num_key_value_heads", None), "heads of keys and values"),
    )
    for count, what in counts:
        if isinstance(count, int) and count % ranks:
            raise UserError(
                f"{ranks} ranks cannot divide the {count} {what} of"
                f" {type(model).__name__}: choose a number of ranks that divides"
                f" {count}"
            )


# -- tied parameters -------------------------------------------------------------------


def tied_names(model: Any) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [each for each in names.values() if len(each) > 1]


def tie(model: Any, names: list[str], origin: str) -> None:
    """Makes tied parameters one again: each of them was replaced by its own part."""
    parts = [model.get_parameter(name) for name in names]
    placements = {str(getattr(part, "placements", None)) for part in parts}
    if len(placements) > 1:
        raise UserError(
            f"{origin}: {' and '.join(names)} are one parameter, but are divided in"
            " different ways"
        )
    for name in names[1:]:
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, parts[0])
