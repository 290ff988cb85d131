"""RC20x, RC220: recompiles because an input tensor differs from the one before."""

from __future__ import annotations

import re

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.recompile_groups import RecompileGroup, placed
from torchproof.checking.rules.recompile_marks import (
    calls_of,
    marked,
    marks_of_target,
)
from torchproof.checking.rules.recompiles import Recompile, Values, converted
from torchproof.checking.rules.rule import Match
from torchproof.checking.rules.shapes import fixed_sizes
from torchproof.checking.rules.state_changes import change_of
from torchproof.checking.static.expansions import Expansion
from torchproof.records import (
    Frame,
    Guard,
    Mark,
    Remedy,
    Setting,
    place_of,
    varying,
    whose,
)


class SizeRecompile(Recompile):
    """Base class of the rules for sizes that differ between calls."""

    settings = (Setting("compile.dynamic", True),)
    reference = torch_pages.DYNAMIC_SHAPES

    def marks(self, group: RecompileGroup) -> tuple[Mark, ...]:
        """What `fix` tries; the remedy has only marks that raise no error."""
        return marks_of_target(group)


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
    size; padding to a few sizes keeps fixed ones.
    """

    code = "RC201"
    causes = ("size",)
    changed_text = "size {guard.dim} of `{guard.source}` changed ({seen})"
    cause_text = (
        "size {guard.dim} of `{guard.source}` was compiled in as {guard.expected}"
    )

    def values_of(self, group: RecompileGroup) -> Values:
        """A size that the traced code or an argument makes a constant stays one."""
        stays = group.stays_constant or _fixing_line(group)
        return Values.ENDLESS if stays else Values.FEW

    def why(self, group: RecompileGroup) -> str:
        text = super().why(group)
        if frame := _fixing_line(group):
            return f"{text}, because {placed(frame, group)} needs a constant"
        if change := change_of(group):
            return f"{text}; {change.text(group)} changes it"
        return f"{text} and stays a constant" if _stays_static(group) else text

    def edit(self, group: RecompileGroup) -> Remedy | None:
        return None if _is_constant(group) else marked(group)

    def setting(self, group: RecompileGroup) -> Setting | None:
        dynamic = group.compile_arguments.get("dynamic")
        has = dynamic == "True" or _is_constant(group) or _sources(group)
        return None if has else self.settings[0]

    def advice(self, group: RecompileGroup) -> str:
        if sources := _sources(group):
            names = ",".join(sources)
            return (
                "before the first compiled call: torch.compiler.config.dynamic_sources"
                f' = "{names}"'
            )
        text = "pad size {guard.dim} of `{guard.source}` to a few sizes"
        reason = "; no mark makes it dynamic" if _is_constant(group) else ""
        return self.say(text, group) + reason


def _sources(group: RecompileGroup) -> list[str]:
    """What varies, as torch names it, where a library compiles and calls the model.

    The user's code then has no line where it could mark the arguments.
    """
    call = group.first.entry_call
    sites = [place_of(w.frames[-1:]) for w in group.facts.wrappers]
    if call is None or {whose(call.file), *(s.owner for s in sites)} != {"library"}:
        return []
    sources = [call.source_of(size.path) for size in varying(calls_of(group))]
    return list(dict.fromkeys(source for source in sources if source is not None))


def _fixing_line(group: RecompileGroup) -> Frame | None:
    """The line of the traced code that made the size a constant."""
    guard = group.guard
    return fixed_sizes(group.facts).get((guard.source, guard.dim or 0))


def _is_constant(group: RecompileGroup) -> bool:
    """Whether neither a mark nor dynamic=True makes the size dynamic."""
    return _fixing_line(group) is not None or _stays_static(group)


def _stays_static(group: RecompileGroup) -> bool:
    """Whether it recompiled again, although nothing forbids that it becomes dynamic."""
    forbidden = group.compile_arguments.get("dynamic") == "False"
    return not forbidden and group.stays_constant


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
    causes = ("size_one",)
    values = Values.FEW
    changed_text = "size {guard.dim} of `{guard.source}` is 0 or 1 in some calls"
    cause_text = (
        "torch compiles sizes 0 and 1 of `{guard.source}` apart from all others, even"
        " if size {guard.dim} is dynamic"
    )
    advice_text = (
        "warm up with size 1 (or 0) and with a larger one: torch keeps the graph of 0/1"
        " beside the other"
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
    causes = ("equal_sizes",)
    values = Values.FEW
    changed_text = (
        "size {guard.dim} of `{guard.source}` and {guard.other} differ, unlike at first"
    )
    cause_text = (
        "duck sizing gave `{guard.source}`.size({guard.dim}) and {guard.other} one"
        " symbol because both were {guard.expected}"
    )
    advice_text = (
        "before the first compiled call:"
        " torch.fx.experimental._config.use_duck_shape = False"
    )

    def edit(self, group: RecompileGroup) -> Remedy | None:
        return marked(group)


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
    causes = ("shape_condition",)
    values = Values.FEW
    changed_text = "the condition `{guard.other}` on a size changed"
    cause_text = "the code decides by a size, and each answer is a graph"
    advice_text = (
        "warm up with one call for each outcome of `{guard.other}`: each graph is kept"
    )

    def why(self, group: RecompileGroup) -> str:
        ones = (
            "; so are the sizes 0 and 1" if group.guard.other.startswith("2 <=") else ""
        )
        return super().why(group) + ones


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
    values = Values.FEW
    source_severity = "low"
    calls = 3
    changed_text = (
        "the memory layout of `{guard.source}` changed (stride {guard.dim}: {seen})"
    )
    cause_text = "the compiled code holds for one layout of `{guard.source}`"

    def advice(self, group: RecompileGroup) -> str:
        code = converted(group.guard, group, ".contiguous()")
        return f"bring it into one layout before the call: {code}"

    def expanded(self, expansion: Expansion) -> Match:
        """A tensor that is expanded over the batch and crosses a graph break."""
        return Match(
            expansion.node,
            f"{expansion.function.name} would recompile in part: `{expansion.name}`"
            " has other strides for a batch of 1",
            "an expanded dimension has stride 0 over several rows and another over one;"
            " what is compiled behind the graph break guards it",
            "fix the graph break that it crosses: inside of one graph strides do not"
            " matter",
        )


_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}


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
    values = Values.FEW
    changed_text = "the dtype of `{guard.source}` changed ({seen})"
    cause_text = "the compiled code holds for one dtype of `{guard.source}`"

    def advice(self, group: RecompileGroup) -> str:
        name = _DTYPES.get(group.guard.expected or "")
        if name is None:
            return "convert it to one dtype before the call"
        code = converted(group.guard, group, f".to(torch.{name})")
        return f"convert it to one dtype before the call: {code}"


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
    values = Values.FEW
    cause_text = "the compiled code holds for one device and kind of tensor"

    def changed(self, group: RecompileGroup) -> str:
        keys = _differing_keys(group.guard)
        if group.guard.cause == "device":
            text = "the device of `{guard.source}` changed ({seen})"
        elif _of_inference_mode(keys):
            text = "`{guard.source}` is an inference tensor in some calls only"
        else:
            text = "`{guard.source}` is another kind of tensor in some calls ({keys})"
        return text.format(**self.words(group), keys=", ".join(sorted(keys)))

    def advice(self, group: RecompileGroup) -> str:
        guard = group.guard
        if guard.cause == "device":
            code = converted(
                guard, group, f'.to("{(guard.expected or "cpu").lower()}")'
            )
            return f"move it to one device before the call: {code}"
        if _of_inference_mode(_differing_keys(guard)):
            text = (
                "create `{guard.source}` under torch.no_grad() instead of"
                " torch.inference_mode()"
            )
        else:
            text = "warm up with each kind of `{guard.source}`: each graph is kept"
        return self.say(text, group)


def _differing_keys(guard: Guard) -> set[str]:
    before, after = (
        set(re.findall(r"\w+", keys or "")) for keys in (guard.expected, guard.actual)
    )
    return before ^ after


def _of_inference_mode(keys: set[str]) -> bool:
    """Whether only one of two tensors was made under torch.inference_mode()."""
    own = r"ADInplaceOrView|Autograd\w*"
    return bool(keys) and all(re.fullmatch(own, key) for key in keys)


class RankChange(Recompile):
    """A tensor has another number of dimensions.

    ## Why
    The number of dimensions is never dynamic.

    ## Bad
        f(torch.randn(4)); f(torch.randn(4, 4))

    ## Good
        f(torch.randn(1, 4)); f(torch.randn(4, 4))

    ## Fix safety
    The values are the same once you squeeze the added dimension, which has size 1.
    """

    code = "RC207"
    causes = ("rank",)
    values = Values.FEW
    changed_text = "`{guard.source}` has another number of dimensions ({seen})"
    cause_text = "the compiled code holds for one number of dimensions"
    advice_text = (
        "warm up with one call for each number of dimensions of `{guard.source}`: each"
        " graph is kept"
    )


class RequiresGradChange(Recompile):
    """A tensor requires a gradient on some calls only.

    ## Why
    If an input requires a gradient, torch also compiles a backward. If not, it does
    not.

    ## Bad
        f(x); f(x.requires_grad_())

    ## Good
        f(x.detach())            # for inference, if no call needs the gradient

    ## Fix safety
    detach() stops the gradient: use it only where you need none.
    """

    code = "RC208"
    causes = ("requires_grad",)
    values = Values.FEW
    changed_text = "requires_grad of `{guard.source}` changed ({seen})"
    cause_text = "torch also compiles a backward if `{guard.source}` needs a gradient"
    advice_text = (
        "warm up with one call where `{guard.source}` needs a gradient and one where it"
        " does not: each graph is kept"
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
    values = Values.FEW
    changed_text = (
        "`{guard.source}` and `{guard.other}` are the same tensor in some calls only"
    )
    cause_text = (
        "whether `{guard.source}` and `{guard.other}` are one tensor is compiled in"
    )
    advice_text = (
        "where both are one tensor, pass {guard.other}.clone() for one of them"
    )
