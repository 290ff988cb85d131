"""Calls from older guides that torch has removed, renamed or deprecated."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import Match, SourceRule
from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import Compiled, literal
from torchproof.checking.static.kinds import words
from torchproof.checking.static.source import Definition, Source, walk

_PROFILE = "torchproof check, or torch._dynamo.utils.counters"
# What torch 2.11 to 2.15 warn about, and what to use instead.
_DEPRECATED = {
    "torch.cuda.amp.autocast": 'torch.amp.autocast("cuda", ...)',
    "torch.cuda.amp.GradScaler": 'torch.amp.GradScaler("cuda", ...)',
    "torch.cuda.amp.custom_fwd": 'torch.amp.custom_fwd(..., device_type="cuda")',
    "torch.cuda.amp.custom_bwd": 'torch.amp.custom_bwd(..., device_type="cuda")',
    "torch.cpu.amp.autocast": 'torch.amp.autocast("cpu", ...)',
    "torch.backends.cuda.sdp_kernel": "torch.nn.attention.sdpa_kernel(...)",
    "torch.cuda.memory_cached": "torch.cuda.memory_reserved()",
    "torch.cuda.max_memory_cached": "torch.cuda.max_memory_reserved()",
    "torch.get_autocast_gpu_dtype": 'torch.get_autocast_dtype("cuda")',
}
# What these versions do not have.
_REMOVED = {
    "torch._dynamo.mark_unbacked": "torch._dynamo.decorators.mark_unbacked(...)",
    "torch._dynamo.utils.CompileProfiler": _PROFILE,
    "torch._dynamo.testing.CompileProfiler": _PROFILE,
    "torch._dynamo.skip": "torch.compiler.disable(...)",
    "torch.export.dynamic_dim": "torch.export.Dim(...)",
    "torch.export.export_for_training": "torch.export.export(...)",
    "torch.export.export_for_inference": "torch.export.export(...)"
    ".run_decompositions()",
    "torch._export.capture_pre_autograd_graph": "torch.export.export(...)",
    "torch.onnx.dynamo_export": "torch.onnx.export(..., dynamo=True)",
}
# With arguments besides the function, torch warns about these.
_OLD_SIGNATURES = ("torch._dynamo.explain", "torch._dynamo.export")
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
        for node in source.nodes:
            if isinstance(node, ast.Call):
                dotted = source.dotted(node.func) or ""
                if dotted.startswith("torch."):
                    yield from self._called(node, dotted, source)
        for site in compiled.of(source).sites:
            yield from self._arguments(site, source)

    def _called(self, node: ast.Call, dotted: str, source: Source) -> Iterator[Match]:
        if dotted in _REMOVED and not _is_probed(node, source):
            yield Match(
                node.func,
                f"{dotted} does not exist",
                f"torch 2.11, 2.13 and 2.15 have no {dotted}: this raises"
                " AttributeError",
                f"use {_REMOVED[dotted]}",
                severity="high",
            )
        if dotted in _DEPRECATED and not _is_probed(node, source):
            cause = f"torch warns of {dotted} and will drop it"
            fix = f"use {_DEPRECATED[dotted]}"
            yield Match(node.func, f"{dotted} is deprecated", cause, fix)
        if dotted in _OLD_SIGNATURES and len(node.args) > 1:
            name = dotted.rpartition(".")[2]
            yield Match(
                node,
                f"{name}(f, *args) is deprecated",
                f"torch warns of {dotted} with arguments beside the function",
                f"write torch._dynamo.{name}(f)(*args)",
            )
        for keyword in node.keywords:
            if instead := _KEYWORDS.get(dotted, {}).get(keyword.arg or ""):
                yield Match(
                    keyword.value,
                    f"{dotted} takes no {keyword.arg}: this raises TypeError",
                    f"torch 2.11, 2.13 and 2.15 have no {keyword.arg} here",
                    instead,
                    severity="high",
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
