"""What `torchproof.graph` adds to the kernels of a step, beside `reduce-overhead`.

    python -m benchmarks.graph_speed [ROW ...] [--rounds 9]

A row runs one step in several ways that take turns in one process. For each: `host_us`,
the time that a call keeps the host busy while nothing waits for the device;
`synced_ms`, a call and a wait for its result; `streamed_ms`, one of many calls without
a wait. The limits are the recorded CUDA graph launched and waited for (`bare_ms`) and
launched many times (`kernels_ms`), without any other work; the `share`s refer to them.
`difference` is the largest relative one from eager, of the first output and of the
gradients. `generate` is a decode step of transformers with a static cache, compiled by
transformers; `tuned+graph` uses the recipe that `torchproof tune` found for it
(`results/decode.toml`). Rows compile at the same time with `--jobs 8`, but each of them
measures alone. Without a GPU, `check` is measured alone: what the host does before a
replay, on a GPT-2 of 12 layers.

Exit code 1 when a graphed step reaches less than 95% of its limit, is slower than the
best mode of torch, or keeps the host busy for more than the stated part of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import torchproof
from benchmarks import step_targets
from benchmarks.survey import RESULTS, Options, Row, Survey
from torchproof.targets.calls import loss

SHARE = 0.95  # of the kernel limit
HOST = {"default": 0.4, "arguments": 0.25}  # of reduce-overhead's host time
CHECK_US = 60.0 if sys.version_info >= (3, 12) else 300.0
TOLERANCE = 0.03  # relative, of bfloat16
ROUNDS = 9
BURST, STREAM = 8, 40  # calls that fit in the queue of the device; calls of a stream
SYNCED = 20
DECODE = "llama_decode"
MODELS = (
    "gpt2_inference",
    "llama_inference",
    "vit_inference",
    "qwen3_inference",
    "dinov2_inference",
    DECODE,
    "gpt2_training",
    "decoder_training_small",
)
GRAPHS = {"eager+graph": "eager", "regional+graph": "regional", "full+graph": "full"}
CHECKS: tuple[Literal["default", "arguments"], ...] = ("default", "arguments")
ARGUMENTS = ", arguments"  # with checks="arguments"
TORCH = ("full", "reduce-overhead")
RECIPE = RESULTS / "decode.toml"

Step = Callable[[], Any]


def is_training(name: str) -> bool:
    return "training" in name


def steps_of(name: str) -> Iterator[tuple[str, Step, Any]]:
    """Each way to run the step: its name, a call, and the graphed step if it is one."""
    made = getattr(step_targets, name)
    model, [call] = made()
    train = is_training(name)

    def eager() -> Any:
        if not train:
            with torch.no_grad():
                return model(**call)
        model.zero_grad(set_to_none=True)
        output = model(**call)
        loss(output).backward()
        return output

    yield "eager", eager, None
    for mode in TORCH:
        yield mode, _compiled(model, call, train, mode), None
    for title, strategy in GRAPHS.items():
        for checks in CHECKS[: 1 if strategy == "eager" else 2]:
            graphed = torchproof.graph(
                model, call, train=train, strategy=strategy, checks=checks
            )
            suffix = "" if checks == "default" else ARGUMENTS
            yield title + suffix, _graphed(model, graphed, call, train), graphed
    if name == DECODE and RECIPE.exists():
        for checks in CHECKS:
            graphed = torchproof.graph(model, call, recipe=RECIPE, checks=checks)
            suffix = "" if checks == "default" else ARGUMENTS
            yield f"tuned+graph{suffix}", _graphed(model, graphed, call, train), graphed


def _compiled(model: Any, call: Row, train: bool, mode: str) -> Step:
    compiled: Any = torch.compile(
        model, dynamic=False, mode=None if mode == "full" else mode
    )

    def step() -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        if not train:
            with torch.no_grad():
                return compiled(**call)
        model.zero_grad(set_to_none=True)
        output = compiled(**call)
        loss(output).backward()
        return output

    return step


def _graphed(model: Any, graphed: Any, call: Row, train: bool) -> Step:
    def step() -> Any:
        if train:
            model.zero_grad(set_to_none=True)
        return graphed(**call)

    return step


# -- measuring -------------------------------------------------------------------------


def error_of(actual: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference, relative to the norm of what is expected."""
    return max(
        float((a.float() - e.float()).norm() / e.float().norm().clamp_min(1e-12))
        for a, e in zip(actual, expected, strict=True)
    )


def results(step: Step, model: Any) -> list[Tensor]:
    getattr(model, "rewind", lambda: None)()
    output = step()
    first = next(iter(output.values())) if isinstance(output, dict) else output
    found = [first.detach().clone()]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return found + [gradient.detach().clone() for gradient in gradients]


def host_us(step: Step) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(BURST):
        step()
    taken = time.perf_counter_ns() - begin
    torch.cuda.synchronize()
    return taken / BURST / 1e3


def synced_ms(step: Step) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(SYNCED):
        step()
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - begin) / SYNCED / 1e6


def streamed_ms(step: Step) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(STREAM):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - begin) / STREAM / 1e6


METRICS = {"host_us": host_us, "synced_ms": synced_ms, "streamed_ms": streamed_ms}


@contextlib.contextmanager
def _lock(*, alone: bool) -> Iterator[None]:
    """Any number of processes compile at a time, or one of them measures."""
    path = Path(tempfile.gettempdir()) / "torchproof-graph-speed.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def measure_model(name: str, rounds: int) -> Row:
    with _lock(alone=False):
        found, steps, graphs = _started(name)
    with _lock(alone=True):
        _measure(found, steps, rounds)
        for title, graphed in graphs.items():
            found[title] |= _limits(graphed, found[title])
        if name == DECODE:
            found["generate"] = _generated(_model_of(steps["eager"]).model)
    return {"ways": found}


def _started(name: str) -> tuple[dict[str, Row], dict[str, Step], dict[str, Any]]:
    """The ways after their first calls, and the graphed steps among them."""
    torch.manual_seed(0)
    found: dict[str, Row] = {}
    steps: dict[str, Step] = {}
    graphs: dict[str, Any] = {}
    expected: list[Tensor] = []
    for title, step, graphed in steps_of(name):
        begin = time.perf_counter()
        try:
            for _ in range(4):
                actual = results(step, _model_of(step))
        except Exception as error:
            found[title] = {"error": f"{type(error).__name__}: {error}"[:300]}
            continue
        expected = expected or actual
        difference = error_of(actual, expected)
        found[title] = {
            "difference": difference,
            "is_right": difference <= TOLERANCE,
            "start_s": time.perf_counter() - begin,
        }
        steps[title] = step
        if graphed is not None:
            graphs[title] = graphed
            found[title]["falls_back"] = graphed.falls_back
    return found, steps, graphs


def _measure(found: dict[str, Row], steps: dict[str, Step], rounds: int) -> None:
    values: dict[str, dict[str, list[float]]] = {
        title: {metric: [] for metric in METRICS} for title in steps
    }
    for _ in range(rounds):
        for title, step in steps.items():
            rewind = getattr(_model_of(step), "rewind", lambda: None)
            for metric, measured in METRICS.items():
                rewind()
                values[title][metric].append(measured(step))
    for title, metrics in values.items():
        found[title] |= {m: statistics.median(each) for m, each in metrics.items()}


def _generated(model: Any) -> Row:
    """A token of `generate` with a static cache: what 32 more tokens take longer."""
    prompt = torch.ones((1, 16), dtype=torch.long, device="cuda")

    def generated(tokens: int, **more: Any) -> Any:
        return model.generate(
            prompt,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            cache_implementation="static",
            max_length=None,
            **more,
        )

    def seconds(tokens: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        generated(tokens)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    def first_decoded(**more: Any) -> Tensor:
        """The logits of the first token that does not come from the prompt."""
        keep = {"return_dict_in_generate": True, "output_logits": True}
        logits: Tensor = generated(3, **keep, **more).logits[1]
        return logits.clone()

    try:
        for _ in range(3):
            seconds(64)
        pairs = [(seconds(64), seconds(32)) for _ in range(5)]
        difference = error_of([first_decoded()], [first_decoded(disable_compile=True)])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    milliseconds = statistics.median(1e3 * (a - b) / 32 for a, b in pairs)
    return {
        "synced_ms": milliseconds,
        "difference": difference,
        "is_right": difference <= TOLERANCE,
    }


def _model_of(step: Step) -> Any:
    """The model in the closure of a step."""
    names = step.__code__.co_freevars
    return step.__closure__[names.index("model")].cell_contents  # type: ignore[index]


def _limits(graphed: Any, row: Row) -> Row:
    """What the kernels alone take, and the shares of it that are reached."""
    recordings = [r for each in graphed._snapshots.every for r in each.recordings]
    if not recordings:
        return {}
    torch.cuda.synchronize()
    capture = recordings[0].capture
    kernels_ms = []
    for _ in range(5):
        getattr(graphed.step, "rewind", lambda: None)()
        kernels_ms.append(1e3 * capture.seconds_of(SYNCED))
    kernels = statistics.median(kernels_ms)
    rewind = getattr(graphed.step, "rewind", lambda: None)
    bare = [(rewind(), synced_ms(capture.replay))[1] for _ in range(5)]
    bare_ms = statistics.median(bare)
    return {
        "bare_ms": bare_ms,
        "kernels_ms": kernels,
        "share_synced": bare_ms / row["synced_ms"],
        "share_streamed": kernels / row["streamed_ms"],
    }


# -- the check alone -------------------------------------------------------------------


def measure_check(rounds: int) -> Row:
    """The host's work before a replay, of a model that does not change."""
    from torchproof.runtime.cudagraph import call_inputs
    from torchproof.runtime.cudagraph.state_snapshot import StateSnapshot
    from torchproof.torch_private import global_switches

    model = step_targets.gpt2_layers(12)
    call: tuple[Any, Any] = (), {"input_ids": torch.ones(1, 16, dtype=torch.long)}
    state = StateSnapshot(model)
    parts: dict[str, Callable[[], Any]] = {
        "state": state.unchanged,
        "key": lambda: call_inputs.key_of(call),
        "switches": global_switches.values,
    }
    return {
        f"{name}_us": min(_loop_us(part) for _ in range(5 * rounds))
        for name, part in parts.items()
    }


def _loop_us(part: Callable[[], Any]) -> float:
    begin = time.perf_counter_ns()
    for _ in range(50):
        part()
    return (time.perf_counter_ns() - begin) / 50 / 1e3


# -- the survey ------------------------------------------------------------------------


def rows(options: Options) -> list[str]:
    return [*MODELS, "check"] if torch.cuda.is_available() else ["check"]


def measure(name: str, options: Options) -> Row:
    rounds = options.rounds or ROUNDS
    return measure_check(rounds) if name == "check" else measure_model(name, rounds)


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        if name == "check":
            if row["state_us"] > CHECK_US:
                yield f"the check takes {row['state_us']:.0f} us, at most {CHECK_US}"
        elif "ways" in row:
            yield from _failures_of(name, row["ways"])


def _failures_of(name: str, ways: dict[str, Row]) -> Iterator[str]:
    for title, way in ways.items():
        if "error" in way:
            yield f"{name}: {title}: {way['error']}"
        elif way.get("difference", 0.0) > TOLERANCE:
            yield f"{name}: {title} differs from eager by {way['difference']:.3g}"
    measured = {title: way for title, way in ways.items() if "host_us" in way}
    torch_modes = [measured[each] for each in TORCH if each in measured]
    reduced = measured.get("reduce-overhead")
    for title, way in measured.items():
        if "kernels_ms" not in way or title.startswith("eager"):
            continue
        if (share := way["share_synced"]) < SHARE:
            yield f"{name}: {title} reaches {share:.0%} of its kernels' speed"
        if way["synced_ms"] > min(each["synced_ms"] for each in torch_modes):
            yield f"{name}: {title} is slower than torch's best mode"
        checks = "arguments" if title.endswith(ARGUMENTS) else "default"
        if reduced and way["host_us"] > HOST[checks] * reduced["host_us"]:
            part = way["host_us"] / reduced["host_us"]
            yield f"{name}: {title} takes {part:.2f} of reduce-overhead's host time"


SURVEY = Survey(
    "graph_speed",
    rows,
    measure,
    failures,
    quick=("check",),
    devices=("cpu", "cuda"),
    limit_s=900,
    packages=("transformers",),
    flags={"--rounds": {"type": int, "help": f"default {ROUNDS}"}},
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
