"""Which models `torchproof.graph` records: a sweep over transformers and timm.

    python benchmarks/graph_coverage.py [NAME ...] [--out FILE] [--slots N] [--again]

Every model is built from its configuration, small, with random weights, and runs in
inference (`bert`) and in training (`bert_training`: forward, loss and backward). Each
is a process of its own: it looks for host syncs in a plain eager step, calls the
recorded step with changing inputs, compares outputs, buffers and gradients with eager,
and times both. The rows go to FILE as each ends, and a model that has a row is left
out, so that a sweep that was cut off continues. Exit code 1 when a replay differs from
eager, or when less than the target is recorded of what has no host sync.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchproof.runtime.cudagraph.recorder import StepResult

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "graph-coverage-h200.json"
TARGET = 0.95  # of the models whose eager step has no host sync
LIMIT_S = 150
SLOTS = 6
CALLS = 4
TIMED, ROUNDS = 5, 5
TRAINING = "_training"
PREFIX = "timm."
TRANSFORMERS = (
    *("t5", "bart", "bert", "gpt2", "llama", "vit", "whisper", "mixtral", "clip"),
    *("roberta", "albert", "deberta-v2", "longformer", "big_bird", "xlm", "funnel"),
    *("canine", "esm", "nystromformer", "convbert", "modernbert", "tapas", "gpt_neox"),
    *("falcon", "bloom", "mpt", "opt", "xlnet", "ctrl", "deepseek_v3", "qwen3_moe"),
    *("gpt_oss", "mamba", "mamba2", "jamba", "rwkv", "recurrent_gemma", "mbart"),
    *("pegasus", "m2m_100", "led", "longt5", "switch_transformers", "speech_to_text"),
    *("wav2vec2", "hubert", "wavlm", "encodec", "swin", "beit", "convnext"),
    *("segformer", "dinov2", "detr", "sam", "layoutlmv3", "siglip", "blip", "vilt"),
    *("llava", "qwen2_vl", "idefics3", "paligemma", "gemma3", "perceiver"),
    *("time_series_transformer", "informer", "patchtst"),
)
# Their labels have another shape than the usual; the loss is the mean of the outputs.
WITHOUT_LABELS = ("layoutlmv3", "perceiver")
TIMM = (
    *("resnet18", "resnet50", "resnext50_32x4d", "efficientnet_b0", "densenet121"),
    *("mobilenetv3_small_100", "convnext_atto", "regnety_002", "repvgg_a0"),
    *("vit_tiny_patch16_224", "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224"),
    *("beit_base_patch16_224", "cait_xxs24_224", "coat_tiny", "crossvit_tiny_240"),
    *("eva02_tiny_patch14_224", "ghostnet_100", "levit_128s", "mixer_s32_224"),
    *("mobilevit_xxs", "pit_ti_224", "poolformer_s12", "pvt_v2_b0", "twins_svt_small"),
    *("xcit_nano_12_p16_224", "edgenext_xx_small", "fastvit_t8", "maxvit_tiny_tf_224"),
    *("res2net50_26w_4s", "focalnet_tiny_srf", "tinynet_e", "mambaout_femto"),
)

Row = dict[str, Any]
Call = dict[str, Any]


def names() -> list[str]:
    """All targets, so mixed that a part of a sweep has some of every kind."""
    timm = [PREFIX + name for name in TIMM]
    pairs = itertools.zip_longest(TRANSFORMERS, timm)
    models = [name for pair in pairs for name in pair if name is not None]
    return [name + mode for name in models for mode in ("", TRAINING)]


# -- one model, in a process of its own ------------------------------------------------


def made(name: str) -> tuple[Any, list[Call]]:
    """The model and several calls of the same shapes; the same at every time."""
    import torch

    torch.manual_seed(0)
    plain, training = name.removesuffix(TRAINING), name.endswith(TRAINING)
    if plain.startswith(PREFIX):
        import timm

        model = timm.create_model(plain.removeprefix(PREFIX), pretrained=False)
        shape = (2, *model.pretrained_cfg["input_size"])
        calls = [{"x": torch.randn(shape)} for _ in range(2)]
    else:
        import transformers_models  # type: ignore[import-not-found]

        model, calls = transformers_models.make(plain, training)
        if plain in WITHOUT_LABELS:
            calls = [{n: v for n, v in call.items() if n != "labels"} for call in calls]
        if training and "decoder_input_ids" in calls[0] and "labels" in calls[0]:
            if getattr(model.config, "decoder_start_token_id", None) is None:
                model.config.decoder_start_token_id = 0
            for call in calls:
                del call["decoder_input_ids"]  # the model makes them from the labels
    return model.train(training), calls[:2]


def on_gpu(call: Call) -> Call:
    import torch

    return {
        name: value.cuda() if isinstance(value, torch.Tensor) else value
        for name, value in call.items()
    }


def eager_step(model: Any, training: bool) -> Callable[[Call], Any]:
    """One plain step, as `torchproof.graph` runs it."""
    import torch

    from torchproof.runtime.cudagraph.preparation import loss_of

    def step(call: Call) -> Any:
        if not training:
            with torch.no_grad():
                return model(**call)
        output = model(**call)
        loss_of(output).backward()  # type: ignore[no-untyped-call]
        return output

    return step


@dataclass(frozen=True)
class Side:
    """A model and how its step is called: in eager or recorded."""

    model: Any
    step: Callable[[Call], Any]

    def result(self, call: Call, seed: int) -> StepResult:
        """What one step returns and leaves behind, from a known random state."""
        import numpy
        import torch

        from torchproof.runtime.cudagraph.recorder import StepResult
        from torchproof.torch_private import trees

        torch.manual_seed(seed)
        numpy.random.seed(seed)  # models of speech draw their masks from it
        random.seed(seed)
        output = self.again(call)
        named = self.model.named_parameters()
        gradients = {name: each.grad for name, each in named if each.grad is not None}
        parts = {
            **trees.values_of(output, "output"),
            **dict(self.model.named_buffers()),
        }
        return StepResult(_copies(parts), _copies(gradients))

    def again(self, call: Call) -> Any:
        self.model.zero_grad()
        return self.step(call)


def _copies(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        label: part.detach().clone() if hasattr(part, "detach") else part
        for label, part in parts.items()
    }


def host_sync(step: Callable[[Call], Any], call: Call) -> str | None:
    """Where the eager step waits for the device; None if it does not."""
    import torch

    from torchproof.records import whose

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        step(call)
    except RuntimeError as error:
        if "synchronizing CUDA operation" not in str(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        owned = [each for each in frames if whose(each.filename) == "library"]
        last = (owned or frames)[-1]
        return portable(f"{last.filename}:{last.lineno}")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def portable(place: str) -> str:
    """A place with the path that a library's file has in every environment."""
    return place.rpartition("site-packages/")[2]


def step_ms(step: Callable[[], Any]) -> float:
    import torch

    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(TIMED):
            step()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - begin) / TIMED * 1e3)
    return round(statistics.median(rounds), 3)


def measured(name: str) -> Row:
    """The row of one model."""
    import torch

    import torchproof

    training = name.endswith(TRAINING)
    model, calls = made(name)
    twin, _ = made(name)
    model, twin = model.cuda(), twin.cuda()
    twin.load_state_dict(model.state_dict())
    calls = [on_gpu(call) for call in calls]
    eager = Side(twin, eager_step(twin, training))
    eager.again(calls[0])  # what only the first call does
    row: Row = {"model": name, "host_sync": host_sync(eager.again, calls[0])}
    twin.load_state_dict(model.state_dict())
    graphed = torchproof.graph(model, strategy="eager", train=training)
    graph = Side(model, lambda call: graphed(**call))
    row |= compared(graph, eager, calls)
    row |= outcome(graphed.status())
    row["eager_ms"] = step_ms(lambda: eager.again(calls[0]))
    row["graph_ms"] = None
    if row["recorded"]:
        row["graph_ms"] = step_ms(lambda: graph.again(calls[0]))
    row["parameters"] = sum(each.numel() for each in model.parameters())
    row["gpu"] = torch.cuda.get_device_name()
    return row


def compared(graph: Side, eager: Side, calls: list[Call]) -> Row:
    """The worst verdict on several steps, each from the same random state."""
    from torchproof.runtime.cudagraph.recorder import compare_results
    from torchproof.torch_private import comparison

    found = []
    for number in range(CALLS):
        call = calls[number % len(calls)]
        actual, expected = graph.result(call, number), eager.result(call, number)
        found.append(compare_results(actual, expected, list(eager.model.parameters())))
    worst = comparison.worst(found)
    why = {"differs": f"{worst.where}: {worst.why}"} if worst.why else {}
    return {"outputs": worst.verdict, **why}


def outcome(status: Any) -> Row:
    """The part of a status that the table needs."""
    stop = status.stops[0] if status.stops else None
    place = None
    if stop is not None:
        place = stop.library or (stop.file and f"{stop.file}:{stop.line}")
    return {
        "recorded": bool(status.replays) and stop is None,
        "replays": status.replays,
        "calls": status.calls,
        "stop": None
        if stop is None
        else {
            "kind": stop.kind,
            "reason": stop.reason,
            "operation": stop.operation,
            "place": portable(place) if place else None,
        },
        "stops": len(status.stops),
    }


def print_row(name: str) -> int:
    begin = time.monotonic()
    warnings.simplefilter("ignore")
    try:
        row = measured(name)
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        row = {"model": name, "error": f"{type(error).__name__}: {lines[0][:200]}"}
    row["seconds"] = round(time.monotonic() - begin, 1)
    print(json.dumps(row))
    return 0


# -- the sweep -------------------------------------------------------------------------


def ran(name: str) -> Row:
    """The row that a process of its own returns."""
    program = [sys.executable, str(Path(__file__)), "--one", name]
    try:
        done = subprocess.run(
            program,
            env={**os.environ, "OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return {"model": name, "error": f"it took longer than {LIMIT_S} s"}
    for text in reversed(done.stdout.splitlines()):
        if text.startswith('{"model"'):
            row: Row = json.loads(text)
            return row
    said = done.stderr.strip().splitlines() or ["no output"]
    return {"model": name, "error": f"exit code {done.returncode}: {said[-1][:200]}"}


def kept(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    return {row["model"]: row for row in json.loads(path.read_text())["models"]}


def keep(path: Path, rows: Mapping[str, Row], slots: int) -> None:
    known = {
        "command": "python benchmarks/graph_coverage.py",
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "at_once": slots,
        "python": platform.python_version(),
        **{each: version(each) for each in ("torch", "transformers", "timm")},
        "models": [rows[name] for name in names() if name in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".tmp")
    written.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    written.replace(path)


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def swept(chosen: list[str], slots: int) -> Iterator[Row]:
    """The rows, in the order in which they end."""
    with ThreadPoolExecutor(slots) as pool:
        jobs = [pool.submit(ran, name) for name in chosen]
        for job in as_completed(jobs):
            yield job.result()


def line(row: Row) -> str:
    if "error" in row:
        return f"{row['model']:40} {row['error']}"
    times = f"{row['eager_ms']} ms"
    if row["recorded"]:
        said = f"recorded, {row['outputs']}"
        times += f" -> {row['graph_ms']} ms"
    else:
        said = f"not recorded: {row['stop'] and row['stop']['reason']}"
    sync = f"; host sync at {row['host_sync']}" if row["host_sync"] else ""
    return f"{row['model']:40} {said}; {times}{sync}; {row['seconds']} s"


def recorded_of(rows: list[Row]) -> tuple[int, int]:
    """How many are recorded of those without a host sync, and the number of these."""
    free = [row for row in rows if "error" not in row and not row["host_sync"]]
    return sum(row["recorded"] for row in free), len(free)


def verdict(rows: list[Row]) -> int:
    wrong = [row["model"] for row in rows if row.get("outputs") == "wrong"]
    if wrong:
        print(f"outputs differ: {', '.join(wrong)}")
    count, every = recorded_of(rows)
    share = count / every if every else 1.0
    print(f"recorded: {count} of {every} without a host sync ({share:.0%})")
    return int(bool(wrong) or share < TARGET)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--slots", type=int, default=SLOTS, help="models at a time")
    parser.add_argument("--again", action="store_true", help="also models with a row")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return print_row(given.one)
    rows = kept(given.out)
    chosen = [n for n in given.names or names() if given.again or n not in rows]
    for row in swept(chosen, given.slots):
        rows[row["model"]] = row
        print(line(row), flush=True)
        keep(given.out, rows, given.slots)
    return verdict(list(rows.values()))


if __name__ == "__main__":
    sys.exit(main())
