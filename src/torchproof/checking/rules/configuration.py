"""CF1xx: how a program compiles and configures. Reading the source finds these."""

from __future__ import annotations

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import EventGroup, Rule


class ReadOnly(Rule):
    """Base of the rules that only reading the source finds; no event matches them."""

    kind = "config"

    def matches(self, group: EventGroup) -> bool:
        return False


class LazyTry(ReadOnly):
    """try/except around torch.compile catches no error of compiling.

    ## Why
    torch.compile only wraps. Compiling happens at the first call with inputs, and that
    is where its errors are raised.

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
    The first call runs once more than before; give it inputs that change nothing.
    """

    code = "CF101"


class AfterParallel(ReadOnly):
    """torch.compile is given a model that DDP or FSDP has wrapped already.

    ## Why
    After DDP, torch cuts the graphs at the buckets of gradients, and DDP's own forward
    breaks; fullgraph=True raises. After FSDP the hooks that gather parameters break the
    graph at each module sharded inside; without use_orig_params=True nothing compiles.

    ## Bad
        model = torch.compile(FSDP(model))

    ## Good
        for block in model.blocks:
            block.compile()
            fully_shard(block)
        fully_shard(model)

    ## Fix safety
    Same values up to rounding. For DDP itself the order "wrap, then compile" is the one
    that PyTorch names: measure before changing it.
    """

    code = "CF102"
    reference = torch_pages.PARALLEL


class CaptureInCapture(ReadOnly):
    """torch.cuda.graph captures something that records CUDA graphs itself.

    ## Why
    The modes reduce-overhead and max-autotune record and replay CUDA graphs, and a
    stream that is capturing can do neither: the capture fails.

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
    One captured graph replaces many; warm up with the shapes that are captured.
    """

    code = "CF103"
    reference = torch_pages.CAPTURES


class UnmarkedSteps(ReadOnly):
    """Functions compiled with CUDA graphs are chained, and no step is marked.

    ## Why
    Without gradients, each call begins a step, and a step frees what the one before it
    gave: the second function reads memory that is being overwritten.

    ## Bad
        features = encoder(batch)     # both mode="reduce-overhead"
        text = decoder(features)

    ## Good
        torch.compiler.cudagraph_mark_step_begin()
        features = encoder(batch)
        text = decoder(features)

    ## Fix safety
    A mark says that a step begins. Outputs of the step before it are gone then: clone
    what must live longer.
    """

    code, kind = "CF104", "cudagraph_lifetime"


class CompiledAnew(ReadOnly):
    """torch.compile is called again and again for the same thing.

    ## Why
    Each call makes a wrapper and looks up backend and options, which takes
    milliseconds. What was compiled before is found again, unless the backend is another
    object (RC219).

    ## Bad
        for batch in data:
            fast = torch.compile(model)
            fast(batch)

    ## Good
        fast = torch.compile(model)
        for batch in data:
            fast(batch)

    ## Fix safety
    The same code runs.
    """

    code = "CF105"
    reference = torch_pages.WHERE


class LateEnvironment(ReadOnly):
    """An environment variable is set after torch has read it.

    ## Why
    TORCH_LOGS and TORCH_TRACE are read while torch is imported; the switches of Dynamo
    and Inductor at the first torch.compile. Later assignments have no effect, and
    nothing says so.

    ## Bad
        import torch
        os.environ["TORCH_LOGS"] = "recompiles"

    ## Good
        import torch
        torch._logging.set_logs(recompiles=True)

    ## Fix safety
    What was meant to be on is on then: logs get longer, compilation may be off.
    """

    code = "CF106"
    reference = torch_pages.LOGS


class UnknownSetting(ReadOnly):
    """A setting or option of the compiler that does not exist, or is ignored.

    ## Why
    To set a name that torch does not have raises AttributeError, and an unknown option
    raises at torch.compile. A mode is for Inductor alone: other backends ignore it.

    ## Bad
        torch._dynamo.config.cache_dir = "/fast/disk"

    ## Good
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/fast/disk"

    ## Fix safety
    The program did not get past that line before.
    """

    code = "CF107"


class GoneApi(ReadOnly):
    """A function, keyword or mode that torch has dropped, renamed or deprecated.

    ## Why
    Guides outlive the versions they were written for. What is gone raises; what is
    deprecated warns and goes next.

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


class ScaledBfloat16(ReadOnly):
    """A GradScaler beside autocast to bfloat16 has nothing to do.

    ## Why
    Scaling keeps small gradients of float16 from vanishing. bfloat16 has the range of
    float32; the scaler adds kernels and a check for infinities to every step.

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
    Same gradients; a step that the scaler would have skipped for infinities is taken.
    """

    code = "CF109"
    reference = torch_pages.AMP


class TimedNothing(ReadOnly):
    """A clock or an alarm stands around torch.compile itself.

    ## Why
    torch.compile only wraps. The time it takes is not the time of compiling, and an
    alarm that ends before the first call stops nothing.

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
    Only what is measured changes.
    """

    code = "CF111"
    reference = torch_pages.PROFILING


class PrefixedCheckpoint(ReadOnly):
    """The state_dict of a compiled module is saved, with `_orig_mod.` in its keys.

    ## Why
    torch.compile(module) returns a module that holds the original as _orig_mod. A plain
    model finds none of its keys in such a checkpoint, and with strict=False stays
    random without a word.

    ## Bad
        model = torch.compile(model)
        torch.save(model.state_dict(), path)

    ## Good
        model.compile()
        torch.save(model.state_dict(), path)

    ## Fix safety
    Checkpoints that exist keep their prefix: strip it once when loading them.
    """

    code = "CF112"
    reference = torch_pages.MODULES


class SilentErrors(ReadOnly):
    """torch._dynamo.config.suppress_errors hides that nothing is compiled.

    ## Why
    Every error of compiling becomes a log line, and the function runs uncompiled from
    then on.

    ## Bad
        torch._dynamo.config.suppress_errors = True

    ## Good
        model = torchproof.compile(model)    # falls back, and says why

    ## Fix safety
    Without it errors are raised again: look at them before deploying.
    """

    code = "CF113"


CONFIGURATION: tuple[ReadOnly, ...] = (
    LazyTry(),
    AfterParallel(),
    CaptureInCapture(),
    UnmarkedSteps(),
    CompiledAnew(),
    LateEnvironment(),
    UnknownSetting(),
    GoneApi(),
    ScaledBfloat16(),
    TimedNothing(),
    PrefixedCheckpoint(),
    SilentErrors(),
)
