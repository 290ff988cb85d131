"""Calls from older guides that torch has removed, renamed or deprecated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import Match, SourceRule
from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import Compiled, literal
from torchproof.checking.static.kinds import words
from torchproof.checking.static.source import Definition, Source, walk
from torchproof.records import Severity


@dataclass(frozen=True)
class RemovedApi:
    """The replacement of a removed or deprecated function."""

    instead: str
    raises: bool = False  # otherwise it works with a warning

    @property
    def severity(self) -> Severity:
        return "high" if self.raises else "low"


REMOVED = {
    "torch.cuda.amp.autocast": RemovedApi('torch.amp.autocast("cuda", ...)'),
    "torch.cuda.amp.GradScaler": RemovedApi('torch.amp.GradScaler("cuda", ...)'),
    "torch.cuda.amp.custom_fwd": RemovedApi(
        'torch.amp.custom_fwd(..., device_type="cuda")'
    ),
    "torch.cuda.amp.custom_bwd": RemovedApi(
        'torch.amp.custom_bwd(..., device_type="cuda")'
    ),
    "torch.cpu.amp.autocast": RemovedApi('torch.amp.autocast("cpu", ...)'),
    "torch.backends.cuda.sdp_kernel": RemovedApi("torch.nn.attention.sdpa_kernel(...)"),
    "torch.cuda.memory_cached": RemovedApi("torch.cuda.memory_reserved()"),
    "torch.cuda.max_memory_cached": RemovedApi("torch.cuda.max_memory_reserved()"),
    "torch.get_autocast_gpu_dtype": RemovedApi('torch.get_autocast_dtype("cuda")'),
    "torch._dynamo.mark_unbacked": RemovedApi(
        "torch._dynamo.decorators.mark_unbacked(...)", raises=True
    ),
    "torch._dynamo.utils.CompileProfiler": RemovedApi(
        "torchproof check, or torch._dynamo.utils.counters", raises=True
    ),
    "torch._dynamo.testing.CompileProfiler": RemovedApi(
        "torchproof check, or torch._dynamo.utils.counters", raises=True
    ),
    "torch._dynamo.skip": RemovedApi("torch.compiler.disable(...)", raises=True),
    "torch.export.dynamic_dim": RemovedApi("torch.export.Dim(...)", raises=True),
    "torch.export.export_for_training": RemovedApi(
        "torch.export.export(...)", raises=True
    ),
    "torch.export.export_for_inference": RemovedApi(
        "torch.export.export(...).run_decompositions()", raises=True
    ),
    "torch._export.capture_pre_autograd_graph": RemovedApi(
        "torch.export.export(...)", raises=True
    ),
    "torch.onnx.dynamo_export": RemovedApi(
        "torch.onnx.export(..., dynamo=True)", raises=True
    ),
}
# Every file that uses one of those names contains one of these words.
_WORDS = (
    "cuda.amp",
    "cpu.amp",
    "sdp_kernel",
    "memory_cached",
    "autocast_gpu_dtype",
    "_dynamo",
    "torch.export",
    "torch._export",
    "dynamo_export",
    "pad_sequence",
)
# Keywords that a function no longer takes, and what to do instead.
_KEYWORDS = {
    "torch.nn.utils.rnn.pad_sequence": {
        "max_length": "pad to a fixed length with torch.nn.functional.pad afterwards"
    },
    "torch.export.export": {"constraints": "pass dynamic_shapes=..."},
}
MODES = (
    "default",
    "lite",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)
# The parameters of torch.compile in torch 2.11 to 2.15 together.
_COMPILE = words(
    "model fullgraph dynamic backend mode options disable recompile_limit"
    " isolate_recompiles shapes_spec dynamic_shapes name"
)


class RemovedApiUse(SourceRule):
    """Torch has removed, renamed or deprecated a function, keyword or mode.

    ## Why
    Old guides describe old versions. A removed API raises an error. A deprecated API
    warns and will be removed.

    ## Bad
        scaler = torch.cuda.amp.GradScaler()
        model = torch.compile(model, mode="fastest")

    ## Good
        scaler = torch.amp.GradScaler("cuda")
        model = torch.compile(model, mode="max-autotune")

    ## Fix safety
    The replacement does the same.
    """

    code = "CF108"
    source_severity = "low"

    def read(self, source: Source) -> Iterator[Match]:
        if any(word in source.text for word in _WORDS):
            for node in source.nodes:
                if isinstance(node, ast.Call):
                    yield from self._name(node, source)
                    yield from self._keywords(node, source)
        if "_dynamo.explain" in source.text or "_dynamo.export" in source.text:
            yield from self._old_signatures(source)
        file = compiled.of(source)
        for site in file.sites:
            yield from self._arguments(site, source)

    def _name(self, node: ast.Call, source: Source) -> Iterator[Match]:
        dotted = source.dotted(node.func) or ""
        gone = REMOVED.get(dotted)
        if gone is None or _is_probed(node, source):
            return
        what = "does not exist" if gone.raises else "is deprecated"
        cause = (
            f"torch 2.11, 2.13 and 2.15 have no {dotted}: this raises AttributeError"
            if gone.raises
            else f"torch warns of {dotted} and will drop it"
        )
        yield Match(
            node=node.func,
            message=f"{dotted} {what}",
            cause=cause,
            fix=f"use {gone.instead}",
            severity=gone.severity,
        )

    def _keywords(self, node: ast.Call, source: Source) -> Iterator[Match]:
        dotted = source.dotted(node.func) or ""
        for keyword in node.keywords if dotted in _KEYWORDS else ():
            fix = _KEYWORDS[dotted].get(keyword.arg or "")
            if fix:
                yield Match(
                    node=keyword.value,
                    message=f"{dotted} takes no {keyword.arg}: this raises TypeError",
                    cause=f"torch 2.11, 2.13 and 2.15 have no {keyword.arg} here",
                    fix=fix,
                    severity="high",
                )

    def _old_signatures(self, source: Source) -> Iterator[Match]:
        """`explain(f, x)` instead of `explain(f)(x)`."""
        for node in source.nodes:
            if not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            dotted = source.dotted(node.func) or ""
            if dotted in ("torch._dynamo.explain", "torch._dynamo.export"):
                name = dotted.rpartition(".")[2]
                yield Match(
                    node,
                    f"{name}(f, *args) is deprecated",
                    f"torch warns of {dotted} with arguments beside the function",
                    f"write torch._dynamo.{name}(f)(*args)",
                )

    def _arguments(self, site: Compiled, source: Source) -> Iterator[Match]:
        arguments = site.arguments
        text = source.brief(site.node)
        mode = literal(arguments.get("mode"))
        if mode is not None and mode not in MODES and site.backend == "inductor":
            yield Match(
                node=arguments["mode"],
                message=f'torch.compile has no mode "{mode}": this call raises',
                cause=f"the modes are {', '.join(MODES)}",
                fix="use one of these modes; torchproof bench measures which is"
                " fastest",
                severity="high",
            )
        if _is_given(arguments.get("mode")) and _is_given(arguments.get("options")):
            yield Match(
                node=arguments["options"],
                message=f"`{text}` raises: it passes both mode and options",
                cause="a mode is a preset of options, and torch.compile takes one of"
                " the two",
                fix="remove mode and pass its options:"
                " torch._inductor.list_mode_options(mode) lists them",
                severity="high",
            )
        for name in sorted(set(arguments) - _COMPILE):
            yield Match(
                node=arguments[name],
                message=f"torch.compile takes no {name}: this raises TypeError",
                cause=f"torch 2.11, 2.13 and 2.15 have no parameter {name} there",
                fix="write fullgraph=True" if name == "nopython" else "remove it",
                severity="high",
            )


def _is_given(node: ast.expr | None) -> bool:
    """Whether an argument is present and certainly not None."""
    return isinstance(node, ast.Dict) or literal(node) is not None


def _is_probed(node: ast.AST, source: Source) -> bool:
    """Whether the program may check first that torch has the function."""
    for at in source.above(node):
        if isinstance(at, ast.Try | ast.If | ast.IfExp):
            return True
        if isinstance(at, Definition) and "hasattr" in source.text_of(at):
            return True
    return False


class ScaledBfloat16(SourceRule):
    """A GradScaler is used with autocast to bfloat16, which does not need it.

    ## Why
    Scaling protects small float16 gradients from underflow. bfloat16 has the range of
    float32, so the scaler only adds kernels and a check for infinities to every step.

    ## Bad
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)

    ## Good
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).mean()
        loss.backward()
        optimizer.step()

    ## Fix safety
    The gradients are the same. The optimizer also takes steps with infinite gradients,
    which the scaler would have skipped.
    """

    code = "CF109"
    reference = torch_pages.AMP
    source_severity = "low"
    source_text = "GradScaler has no effect: autocast uses bfloat16"
    cause_text = (
        "scaling keeps small gradients of float16 from vanishing; bfloat16 has the"
        " range of float32"
    )
    fix_text = "remove the scaler: use loss.backward() and optimizer.step()"

    def read(self, source: Source) -> Iterator[Match]:
        if "GradScaler" not in source.text or "bfloat16" not in source.text:
            return
        if "float16" in source.text.replace("bfloat16", "") or "fp16" in source.text:
            return  # the program also supports float16
        if not self._casts(source):
            return
        for node in source.nodes:
            if not isinstance(node, ast.Call):
                continue
            name = (source.dotted(node.func) or "").rpartition(".")[2]
            switched = any(k.arg == "enabled" for k in node.keywords)
            if name == "GradScaler" and not switched:
                yield Match(node)

    def _casts(self, source: Source) -> bool:
        for node in source.nodes:
            if not isinstance(node, ast.Call):
                continue
            if not (source.dotted(node.func) or "").endswith("autocast"):
                continue
            words = {
                source.dotted(n) for n in walk(node) if isinstance(n, ast.Attribute)
            }
            if "torch.bfloat16" in words:
                return True
        return False
