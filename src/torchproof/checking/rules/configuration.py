"""CF1xx: how a program compiles and configures torch.

Only source analysis reports these rules: see `static/patterns`.
"""

from __future__ import annotations

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import Rule


class SourceRule(Rule):
    """Base class of the rules that only source analysis reports; no event matches."""

    kind = "config"
    parts = ("static",)
    reference = torch_pages.USE


class LazyTry(SourceRule):
    """try/except around torch.compile does not catch compile errors.

    ## Why
    torch.compile only wraps the model. Compilation happens at the first call with
    inputs, and its errors are raised there.

    ## Bad
        try:
            model = torch.compile(model)
        except Exception:
            pass                      # never reached

    ## Good
        eager, model = model, torch.compile(model)
        try:
            model(example)            # compiles here
        except Exception:
            model = eager

    ## Fix safety
    The program makes one more call than before; use inputs that change no state.
    """

    code = "CF101"


class AfterParallel(SourceRule):
    """torch.compile gets a model that is already wrapped in DDP or FSDP.

    ## Why
    After DDP, torch splits the graphs at the gradient buckets, and DDP's own forward
    causes graph breaks; with fullgraph=True it raises an error. After FSDP, the hooks
    that gather parameters break the graph at each sharded module inside; without
    use_orig_params=True nothing is compiled.

    ## Bad
        model = torch.compile(FSDP(model))

    ## Good
        for block in model.blocks:
            block.compile()
            fully_shard(block)
        fully_shard(model)

    ## Fix safety
    The values are the same up to rounding. For DDP, PyTorch itself recommends to wrap
    first and then compile: measure before you change it.
    """

    code = "CF102"
    reference = torch_pages.PARALLEL


class CaptureInCapture(SourceRule):
    """torch.cuda.graph captures a function that records CUDA graphs itself.

    ## Why
    The modes reduce-overhead and max-autotune record and replay CUDA graphs. Neither is
    possible on a stream that is capturing, so the capture fails.

    ## Bad
        step = torch.compile(step, mode="reduce-overhead")
        with torch.cuda.graph(graph):
            out = step(x)

    ## Good
        step = torch.compile(step)
        for _ in range(3):
            step(x)
        with torch.cuda.graph(graph):
            out = step(x)

    ## Fix safety
    One captured graph replaces many. Warm up with the shapes that you capture.
    """

    code = "CF103"
    reference = torch_pages.CAPTURES


class UnmarkedSteps(SourceRule):
    """Functions compiled with CUDA graphs are chained, and no step is marked.

    ## Why
    Without gradients, each call begins a step, and a step frees the outputs of the step
    before it. The second function reads memory that is being overwritten.

    ## Bad
        features = encoder(batch)     # both mode="reduce-overhead"
        text = decoder(features)

    ## Good
        torch.compiler.cudagraph_mark_step_begin()
        features = encoder(batch)
        text = decoder(features)

    ## Fix safety
    A mark begins a step and frees the outputs of the step before: clone the outputs
    that must live longer.
    """

    code = "CF104"
    kind = "cudagraph_lifetime"
    reference = torch_pages.CUDAGRAPHS


class CompiledAnew(SourceRule):
    """torch.compile is called repeatedly for the same function.

    ## Why
    Each call creates a wrapper and resolves the backend and its options, which takes
    milliseconds. Torch reuses the compiled code, unless the backend is another object
    (RC219).

    ## Bad
        for batch in data:
            fast = torch.compile(model)
            fast(batch)

    ## Good
        fast = torch.compile(model)
        for batch in data:
            fast(batch)

    ## Fix safety
    The same compiled code runs.
    """

    code = "CF105"
    reference = torch_pages.WHERE


class LateEnvironment(SourceRule):
    """An environment variable is set after torch has read it.

    ## Why
    Torch reads TORCH_LOGS and TORCH_TRACE while it is imported, and the switches of
    Dynamo and Inductor at the first torch.compile. Later assignments have no effect,
    and there is no warning.

    ## Bad
        import torch
        os.environ["TORCH_LOGS"] = "recompiles"

    ## Good
        import torch
        torch._logging.set_logs(recompiles=True)

    ## Fix safety
    The setting takes effect: logs get longer, or compilation is switched off.
    """

    code = "CF106"
    reference = torch_pages.LOGS


class UnknownSetting(SourceRule):
    """A setting or option of the compiler does not exist, or has no effect.

    ## Why
    Setting an unknown name raises AttributeError, and an unknown option raises an error
    in torch.compile. A mode is an option of Inductor: other backends ignore it.

    ## Bad
        torch._dynamo.config.cache_dir = "/fast/disk"

    ## Good
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/fast/disk"

    ## Fix safety
    The program failed at that line before.
    """

    code = "CF107"


class GoneApi(SourceRule):
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


class TimedNothing(SourceRule):
    """A timer or an alarm covers torch.compile itself.

    ## Why
    torch.compile only wraps the model. The time it takes is not the compile time, and
    an alarm that ends before the first call stops nothing.

    ## Bad
        start = time.perf_counter()
        model = torch.compile(model)
        print("compiled in", time.perf_counter() - start)

    ## Good
        model = torch.compile(model)
        start = time.perf_counter()
        model(example)
        print("first call took", time.perf_counter() - start)

    ## Fix safety
    Only the measurement changes.
    """

    code = "CF111"
    reference = torch_pages.PROFILING


class PrefixedCheckpoint(SourceRule):
    """The state_dict of a compiled module is saved, with `_orig_mod.` in its keys.

    ## Why
    torch.compile(module) returns a module that holds the original as _orig_mod. An
    uncompiled model does not find its keys in such a checkpoint. With strict=False it
    silently keeps its random weights.

    ## Bad
        model = torch.compile(model)
        torch.save(model.state_dict(), path)

    ## Good
        model.compile()
        torch.save(model.state_dict(), path)

    ## Fix safety
    Existing checkpoints keep their prefix: strip it when you load them.
    """

    code = "CF112"
    reference = torch_pages.MODULES


class SilentErrors(SourceRule):
    """torch._dynamo.config.suppress_errors hides compile errors.

    ## Why
    Every compile error becomes a log line, and the function runs uncompiled from then
    on.

    ## Bad
        torch._dynamo.config.suppress_errors = True

    ## Good
        model = torchproof.compile(model)    # falls back, and reports why

    ## Fix safety
    Without it, errors are raised again: fix them before you deploy.
    """

    code = "CF113"
