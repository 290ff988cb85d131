"""RC20x, RC220: recompiles because an input tensor differs from the one before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import (
    Piece,
    assembled,
    removed,
    setting,
    written_marks,
)
from torchproof.checking.rules.breaks import place_in_text
from torchproof.checking.rules.recompile_groups import RecompileGroup, call_frame
from torchproof.checking.rules.recompiles import (
    Marks,
    Recompile,
    VaryingSize,
    converted,
    marks,
    sources_passed_by_library,
    values_seen,
)
from torchproof.checking.rules.rule import Match, expression_of, shorten
from torchproof.checking.rules.shapes import fixed_sizes
from torchproof.checking.static.expansions import Expansion
from torchproof.records import (
    Argument,
    Frame,
    Guard,
    GuardEvent,
    Mark,
    Setting,
    Severity,
    shown_briefly,
)

_WARM_UP = (
    "warm up with both before serving: a first call with size 2 or more, and one call"
    " with size 1; each keeps its own graph"
)


class SizeRecompile(Recompile):
    """Base class of the rules for sizes that differ between calls."""

    settings = (Setting("compile.dynamic", True),)

    def marks(self, group: RecompileGroup) -> tuple[Mark, ...]:
        call = group.first.entry_call
        if call is None or call.by_user or group.cut is not None:
            return ()  # the argument is not one of the target's
        changing = [size for each in marks(group)[:1] for size in each.sizes]
        return tuple(_marks_of(changing))


class SizeChange(SizeRecompile):
    """A dimension of a tensor changes its size between calls.

    ## Why
    The first compilation treats every size as fixed. The second makes the changed
    dimension dynamic, unless dynamic=False forbids it.

    ## Bad
        step(torch.randn(8, 16)); step(torch.randn(9, 16))

    ## Good
        torch._dynamo.maybe_mark_dynamic(x, 0)      # before the first call

    ## Fix safety
    The values are the same. A dynamic graph can be slightly slower than one for a fixed
    size.
    """

    code = "RC201"
    setting_cures = True
    reference = torch_pages.DYNAMIC_SHAPES
    causes = ("size",)
    changed_text = "size {guard.dim} of `{guard.source}` changed ({seen})"

    def severity(self, group: RecompileGroup) -> Severity:
        """A size that the traced code makes a constant does not settle."""
        found = super().severity(group)
        is_constant = _is_constant(group.guard, group)
        return "medium" if found == "low" and is_constant else found

    def why(self, guard: Guard, group: RecompileGroup) -> str:
        static = " and stays static" if _stays_static(guard, group) else ""
        return (
            f"size {guard.dim} of `{guard.source}` was compiled in as"
            f" {guard.expected}{static}"
        )

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        if group.is_marked_at_call:
            return _marks_at_call(group)
        if sources := sources_passed_by_library(group):
            return (
                "before the first call: torch.compiler.config.dynamic_sources ="
                f' "{",".join(sources)}"; or pad to a few bucket sizes where you build'
                " the batches"
            )
        sizes = [size for each in marks(group)[:1] for size in each.sizes]
        marked = _marked(sizes) or _mark(guard.source, guard.dim)
        if _stays_static(guard, group) and _is_forbidden(group):
            return (
                f"let size {guard.dim} of `{guard.source}` be dynamic: drop"
                f" dynamic=False, or call {marked} before the first call; or pad to a"
                " few bucket sizes"
            )
        if _stays_static(guard, group):
            return (
                f"pad size {guard.dim} of `{guard.source}` to a few bucket sizes, or"
                " use tensors where the code makes the size a constant"
                " (TORCH_LOGS=dynamic names the lines); marks do not help"
            )
        return assembled(
            Piece(f"{marked} before the first call (one graph from the start)"),
            setting(group, self.settings[0]),
            Piece("pad to a few bucket sizes"),
        )


def _is_forbidden(group: RecompileGroup) -> bool:
    """Whether dynamic=False keeps sizes static."""
    return group.facts.compile_arguments.get("dynamic") == "False"


def _marks_at_call(group: RecompileGroup) -> str:
    """The statements to write before each call of the compiled function."""
    changing = marks(group)
    if not any(each.sizes for each in changing):  # a trace has no sizes
        changing = [_guarded(group)]
    fixed = _fixed(changing, group)
    marked = [each for m in changing if (each := _without(m, fixed, group)).sizes]
    if all((guard.source, guard.dim or 0) in fixed for guard in group.guards):
        marked = []
    steps = ["drop dynamic=False"] if _is_forbidden(group) else []
    steps += [_before(each, group) for each in marked]
    if sum(len(each.sizes) for each in marked) > 1:
        steps[-1] += " (all of them: one fixed size fixes the others)"
    sizes = [size for each in changing for size in each.sizes]
    named = {(size.argument.words, size.dim) for size in sizes}
    own = [
        mark
        for mark in written_marks(group)
        if mark.how == "mark_unbacked"
        and named & {(mark.tensor, dim) for dim in mark.dimensions}
    ]
    return assembled(
        Piece(removed(*own)),
        Piece("; ".join(steps)),
        *(
            Piece(
                f"marking size {dim} of `{words}` does not help, because"
                f" {place_in_text(frame)} fixes it: keep it constant, by padding or"
                " with drop_last=True in a DataLoader"
            )
            for (words, dim), frame in fixed.items()
        ),
        Piece(_WARM_UP, any({0, 1} & set(size.seen) for size in sizes)),
        Piece("pad to a few bucket sizes", not fixed),
    )


def _fixed(
    changing: list[Marks], group: RecompileGroup
) -> dict[tuple[str, int], Frame]:
    """The sizes that a line of the compiled code fixes, marked or not."""
    sizes = [(m.argument.words, m.dim) for each in changing for m in each.sizes]
    lines = fixed_sizes(group.facts)
    return {size: lines[size] for size in sizes if size in lines}


def _without(
    marks: Marks, fixed: Mapping[tuple[str, int], Frame], group: RecompileGroup
) -> Marks:
    """The sizes that a mark keeps dynamic, and that the source does not mark."""
    written = {(m.tensor, dim) for m in written_marks(group) for dim in m.dimensions}
    dynamic = [
        size
        for size in marks.sizes
        if (size.argument.words, size.dim) not in fixed.keys() | written
        and (not {0, 1} & set(size.seen) or len(set(size.seen) - {0, 1}) > 1)
    ]
    return Marks(marks.call, tuple(dynamic))


def _guarded(group: RecompileGroup) -> Marks:
    guard = group.guard
    argument = Argument(guard.source, fixed=group.is_fixed)
    sizes = (1,) if guard.cause == "size_one" else ()
    call = group.first.entry_call
    assert call is not None  # it is marked at the call
    return Marks(call, (VaryingSize(argument, guard.dim or 0, sizes),))


def _before(marks: Marks, group: RecompileGroup) -> str:
    frame = call_frame(marks.call)
    call = f"`{expression_of(frame)}`" if frame else "the call"
    at = (marks.call.file, marks.call.line)
    place = group.frame
    is_place = place is not None and (place.file, place.line) == at
    where = "" if is_place else f" at {shown_briefly(at[0])}:{at[1]}"
    variables = _variables(marks.sizes)
    code = [f"{name} = {shorten(words)}" for words, name in variables.items()]
    code.append(_marked([_renamed(size, variables) for size in marks.sizes]))
    passed = f", and pass {' and '.join(variables.values())}" if variables else ""
    return f"before {call}{where}, each time: {'; '.join(code)}{passed}"


def _variables(changing: Sequence[VaryingSize]) -> dict[str, str]:
    """Names for arguments that are computed in the call: it must get what is marked."""
    computed = [size.argument.words for size in changing if not size.argument.fixed]
    words = list(dict.fromkeys(computed))
    if len(words) == 1:
        return {words[0]: "tensor"}
    return {each: f"tensor_{number}" for number, each in enumerate(words, 1)}


def _renamed(size: VaryingSize, variables: Mapping[str, str]) -> VaryingSize:
    words = size.argument.words
    argument = replace(size.argument, words=variables.get(words, words))
    return size._replace(argument=argument)


def _marked(changing: Sequence[VaryingSize]) -> str:
    """The statements that make sizes dynamic, and raise no error where they cannot.

    `torchproof fix` also tries the marks that may raise one: see `_marks_of`.
    """
    return "; ".join(
        Mark(size.argument.words, size.dim, "maybe_mark_dynamic").code
        for size in changing
    )


def _marks_of(changing: Sequence[VaryingSize]) -> Iterator[Mark]:
    """Marks that make sizes dynamic, to be tried: some programs fail with them.

    Torch compiles sizes 0 and 1 separately unless they are unbacked; then it must know
    which sizes are equal (shape_id). Sizes that are equal in the first call share a
    symbol, unless mark_dynamic says that they vary independently.
    """
    series = list(dict.fromkeys(mark.seen for mark in changing))
    first = [sizes[:1] for sizes in series]
    for argument, dim, sizes in changing:
        if {0, 1} & set(sizes):
            same = f"s{series.index(sizes)}"
            yield Mark(argument.words, dim, "mark_unbacked", same)
        elif first.count(sizes[:1]) > 1:
            yield Mark(argument.words, dim, "mark_dynamic")
        else:
            yield Mark(argument.words, dim, "maybe_mark_dynamic")


def _mark(words: str, dim: int | None) -> str:
    return f"torch._dynamo.maybe_mark_dynamic({words}, {dim})"


def _is_constant(guard: Guard, group: RecompileGroup) -> bool:
    """Whether the size was dynamic until a line of the traced code fixed it."""
    return (guard.source, guard.dim) in fixed_sizes(group.facts)


def _stays_static(guard: Guard, group: RecompileGroup) -> bool:
    """Whether it did not become dynamic: a line fixed it, or it recompiled again."""
    if _is_constant(guard, group):
        return True
    own = group.first.guard
    about = own and (own.source, own.dim)
    same = [
        event
        for event in group.facts.of(GuardEvent)
        if event.function == group.first.function
        and event.guard is not None
        and event.guard.cause == "size"
        and (event.guard.source, event.guard.dim) == about
    ]
    return len(same) > 1


class SizeOne(SizeRecompile):
    """A dimension is 0 or 1 on some calls.

    ## Why
    Torch always specialises sizes 0 and 1, even under dynamic=True and mark_dynamic,
    because broadcasting treats them differently.

    ## Bad
        model(batch_of_8); model(batch_of_1)

    ## Good
        for n in (8, 1): model(torch.zeros(n, 16))       # warm up with both

    ## Fix safety
    Warming up is always safe. torch._dynamo.decorators.mark_unbacked(x, 0) makes one
    graph for every size, but code that decides by the size then breaks the graph or
    raises an error, also in a library: try it with `torchproof fix`.
    """

    code = "RC202"
    reference = torch_pages.DYNAMIC_SHAPES
    causes = ("size_one",)
    changed_text = (
        "size {guard.dim} of `{guard.source}` is 0 or 1 on some calls (0/1"
        " specialisation)"
    )
    cause_text = (
        "torch compiles sizes 0 and 1 of `{guard.source}` apart from all others, even"
        " when dimension {guard.dim} is dynamic"
    )

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        if group.is_marked_at_call:
            return _marks_at_call(group)
        tried = bool(self.marks(group))
        return assembled(
            Piece(_WARM_UP),
            Piece("pad size 1 to 2"),
            Piece("let `torchproof fix` try marks for one graph of all sizes", tried),
        )


class EqualSizes(SizeRecompile):
    """Two dimensions were equal in the first call, so torch gave them one symbol.

    ## Why
    With duck sizing, dimensions of equal size share a symbol until they differ.

    ## Bad
        f(torch.randn(8), torch.randn(8)); f(torch.randn(8), torch.randn(9))

    ## Good
        f(torch.randn(8), torch.randn(9))     # the first call: different sizes

    ## Fix safety
    The values are the same.
    """

    code = "RC203"
    reference = torch_pages.DYNAMIC_SHAPES
    causes = ("equal_sizes",)
    changed_text = (
        "size {guard.dim} of `{guard.source}` and {guard.other} were equal at first,"
        " and are not any more (duck sizing)"
    )
    cause_text = (
        "duck sizing gave `{guard.source}`.size({guard.dim}) and {guard.other} one"
        " symbol because both were {guard.expected}"
    )
    advice_text = (
        "warm up with different sizes in the first call; or switch off duck sizing:"
        " torch.fx.experimental._config.use_duck_shape = False"
    )


class ShapeCondition(SizeRecompile):
    """The code compares, divides or slices by a size, and the outcome changed.

    ## Why
    A condition on a size becomes a guard. A size for which the condition has another
    outcome needs another graph.

    ## Bad
        if x.shape[0] > 64: ...

    ## Good
        x = pad(x, to=128)       # so that the condition always has the same outcome

    ## Fix safety
    Padding must not change the result: mask the added values.
    """

    code = "RC220"
    reference = torch_pages.DYNAMIC_SHAPES
    causes = ("shape_condition",)
    changed_text = "the condition `{guard.other}` on a size changed"

    def why(self, guard: Guard, group: RecompileGroup) -> str:
        by = f" at `{guard.code}`" if guard.code else ""
        reason = f"the code decides by a size{by}, and each answer is a graph"
        return f"{reason}; so are the sizes 0 and 1" if _from_two(guard) else reason

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        by = f"`{guard.code}`" if guard.code else f"`{guard.other}`"
        # Torch names both ends of the range, but not the end that failed.
        return assembled(
            Piece(
                f"avoid the condition on the size at {by}: pad `{guard.source}` so that"
                " it always holds, or compute both sides"
            ),
            Piece("warm up with one call for each outcome", not _from_two(guard)),
            Piece(
                "warm up with one call for each outcome, and one with size 1",
                _from_two(guard),
            ),
        )


def _from_two(guard: Guard) -> bool:
    return guard.other.startswith("2 <= ")


class LayoutChange(Recompile):
    """The strides or the memory format of a tensor change between calls.

    ## Why
    Inductor generates kernels for one layout.

    ## Bad
        f(a); f(b.t())

    ## Good
        f(b.t().contiguous())

    ## Fix safety
    The values are the same. .contiguous() copies the tensor if its layout differs.
    """

    code = "RC204"
    causes = ("stride",)
    source_severity = "low"
    calls = 3
    changed_text = (
        "the memory layout of `{guard.source}` changed (stride {guard.dim}: {seen})"
    )

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        return (
            f"convert `{guard.source}` to one layout before the call:"
            f" {converted(guard, group, '.contiguous()')} (or a fixed memory_format),"
            " so that its strides are always the same"
        )

    def expanded(self, expansion: Expansion) -> Match:
        """A tensor that is expanded over the batch and crosses a graph break."""
        return Match(
            expansion.node,
            f"`{expansion.text}` has different strides for a batch of 1, and part of"
            f" {expansion.function.name} would recompile for them",
            "the expanded dimension has stride 0 over several rows and another over"
            " one; the tensor crosses a graph break, and what is compiled behind it"
            " guards its strides",
            "fix the graph break; or copy the rows with .expand(...).contiguous() or"
            f" repeat; or keep `{expansion.name}` without a batch dimension and let it"
            " broadcast",
        )


class DtypeChange(Recompile):
    """A tensor's dtype changes between calls.

    ## Why
    Every dtype needs its own kernels.

    ## Bad
        f(x); f(x.double())

    ## Good
        f(x); f(x.double().to(x.dtype))

    ## Fix safety
    Converting rounds: choose the dtype that the model is meant for.
    """

    code = "RC205"
    causes = ("dtype",)
    changed_text = "the dtype of `{guard.source}` changed ({seen})"

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        dtype = {
            "Float": "torch.float32",
            "Double": "torch.float64",
            "Half": "torch.float16",
        }
        name = dtype.get(guard.expected or "", f"the dtype it had ({guard.expected})")
        return (
            "convert before the call so that the dtype is always the same:"
            f" {converted(guard, group, f'.to({name})')}"
        )


class DeviceChange(Recompile):
    """A tensor is on another device, or has other dispatch keys.

    ## Why
    Compiled code is specific to one device.

    ## Bad
        f(x_on_gpu); f(x_on_cpu)

    ## Good
        f(x_on_cpu.to("cuda"))

    ## Fix safety
    The values are the same. The copy takes time.
    """

    code = "RC206"
    causes = ("device", "dispatch_key")
    changed_text = "the device of `{guard.source}` changed ({seen})"

    def changed(self, guard: Guard, group: RecompileGroup) -> str:
        if guard.cause == "device":
            return super().changed(guard, group)
        if _of_inference_mode(guard):
            return f"`{guard.source}` is an inference tensor in some calls only"
        return f"the dispatch keys of `{guard.source}` changed ({values_seen(group)})"

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        if guard.cause == "device":
            return (
                "move it before the call so that the device is always the same:"
                f" {converted(guard, group, '.to(device)')}"
            )
        if _of_inference_mode(guard):
            return (
                f"create `{guard.source}` under torch.inference_mode() in every call,"
                " or in none (torch.no_grad() makes ordinary tensors); or warm up with"
                " both"
            )
        return (
            f"pass the same kind of tensor as `{guard.source}` in every call: the same"
            " subclass, layout and modes; or warm up with each"
        )


def _of_inference_mode(guard: Guard) -> bool:
    """Whether only one of two tensors was made under torch.inference_mode()."""
    before, after = (
        set(re.findall(r"\w+", keys or "")) for keys in (guard.expected, guard.actual)
    )
    differing = before ^ after
    return bool(differing) and all(
        re.fullmatch(r"ADInplaceOrView|Autograd\w*", key) for key in differing
    )


class RankChange(Recompile):
    """A tensor has another number of dimensions.

    ## Why
    The number of dimensions is never dynamic.

    ## Bad
        f(torch.randn(4)); f(torch.randn(4, 4))

    ## Good
        f(torch.randn(1, 4)); f(torch.randn(4, 4))

    ## Fix safety
    The values are the same once you squeeze the added dimension.
    """

    code = "RC207"
    causes = ("rank",)
    changed_text = "`{guard.source}` has another number of dimensions ({seen})"
    advice_text = (
        "always pass `{guard.source}` with the same rank, e.g."
        " {guard.source}.unsqueeze(0) for the smaller one, or compile one function per"
        " rank"
    )


class RequiresGradChange(Recompile):
    """A tensor requires a gradient on some calls only.

    ## Why
    If an input requires a gradient, torch also compiles a backward. If not, it does
    not.

    ## Bad
        f(x); f(x.requires_grad_())

    ## Good
        f(x.detach())            # for inference

    ## Fix safety
    detach() stops the gradient: use it only where you need none.
    """

    code = "RC208"
    causes = ("requires_grad",)
    changed_text = "requires_grad of `{guard.source}` changed ({seen})"
    advice_text = (
        "keep requires_grad of `{guard.source}` the same: {guard.source}.detach() where"
        " no gradient is needed, or run those calls under torch.no_grad(); warm up both"
        " if both are needed"
    )


class Aliasing(Recompile):
    """Two inputs are the same tensor on some calls and not on others.

    ## Why
    A write to one must be visible in the other, so torch compiles the two cases
    separately.

    ## Bad
        f(x, y); f(x, x)

    ## Good
        f(x, x.clone())

    ## Fix safety
    A write to the clone does not change the original.
    """

    code = "RC209"
    causes = ("alias",)
    changed_text = (
        "`{guard.source}` and `{guard.other}` are the same tensor on some calls only"
    )
    cause_text = (
        "whether `{guard.source}` and `{guard.other}` alias is part of what was"
        " compiled"
    )
    advice_text = (
        "pass different tensors: {guard.other}.clone() where `{guard.other}` is the"
        " same tensor as `{guard.source}`; or always pass the same one"
    )
