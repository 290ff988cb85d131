"""What the first call takes under torchproof.compile, in shares of torch.compile's.

    python -m benchmarks.first_call [ROW ...] [--pairs N]

Every start is a fresh process with empty caches. Its clock runs from the model, which
is built, to the end of the first call, and for training of its backward pass; the time
that `torchproof.compile` takes to return is in it. The two take turns, and a ratio is
that of a pair. The answers are compared with those of eager. `busy` rows run beside a
process that computes all the time. Exit code 1 when the median ratio of an idle row is
above 0.9, or that of a busy one above 1.1.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.survey import Options, Row, Survey, answer

LIMITS = {"idle": 0.9, "busy": 1.1}
WAYS = ("torch", "torchproof")
MODELS = ("mlp", "qwen2", "qwen2-training")
TOLERANCE = 1e-3  # of the largest value; kernels round in another order


def measure(name: str, options: Options) -> Row:
    model, _, load = name.partition(", ")
    starts = []
    for _ in range(options.pairs or (1 if options.quick else 5)):
        pair = {way: started(model, way, busy=load == "busy") for way in WAYS}
        starts.append(pair)
    ratios = [
        each["torchproof"]["seconds"] / each["torch"]["seconds"] for each in starts
    ]
    return {
        "starts": starts,
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
    }


def started(model: str, way: str, *, busy: bool) -> Row:
    program = (
        "import sys; from benchmarks.first_call import child; child(*sys.argv[1:])"
    )
    other = None
    if busy:
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        row: Row = json.loads(answer("-c", program, model, way))
        return row
    finally:
        if other is not None:
            other.kill()
            other.wait()


def child(name: str, way: str) -> None:
    """One start, in this process."""
    import torch

    import torchproof

    torch.manual_seed(0)
    model, call, train = built(name)
    with torch.set_grad_enabled(train):
        expected = answer_of(model, call)
        compile_it = torch.compile if way == "torch" else torchproof.compile
        begin = time.perf_counter()
        output = answer_of(compile_it(model), call)
        if train:
            output.mean().backward()
        seconds = time.perf_counter() - begin
    error = float((output - expected).abs().max() / expected.abs().max())
    assert error < TOLERANCE, error
    print(json.dumps({"seconds": seconds, "error": error}))


def built(name: str) -> tuple[Any, dict[str, Any], bool]:
    import torch

    if name == "mlp":
        layers = (torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
        return torch.nn.Sequential(*layers), {"input": torch.randn(8, 64)}, False
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 4)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        **sizes,
    )
    config.use_cache = False
    return (
        Qwen2ForCausalLM(config).eval(),
        {"input_ids": torch.randint(0, 512, (2, 32))},
        name.endswith("training"),
    )


def answer_of(model: Any, call: dict[str, Any]) -> Any:
    output = model(**call)
    return getattr(output, "logits", output)


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        limit = LIMITS[name.partition(", ")[2]]
        if row["ratio"] > limit:
            yield f"{name}: {row['ratio']:.2f} of torch.compile, at most {limit}"


SURVEY = Survey(
    "first_call",
    lambda options: [f"{model}, {load}" for load in LIMITS for model in MODELS],
    measure,
    failures,
    quick=("mlp, idle",),
    limit_s=3600,
    packages=("transformers",),
    is_isolated=False,
    flags={"--pairs": {"type": int, "help": "of starts (5)"}},
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
