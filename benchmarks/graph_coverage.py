"""Which models `torchproof.graph` records: a sweep over transformers and timm.

    python -m benchmarks.graph_coverage [MODEL ...] [--jobs N]

Every model is built from its configuration, small, with random weights, and runs in
inference (`bert`) and in training (`bert_training`: forward, loss and backward). A row
looks for host syncs in a plain eager step, calls the recorded step with changing
inputs, and compares outputs, buffers and gradients with eager. Exit code 1 when a
replay differs from eager, or when less than the target is recorded of what has no host
sync. Needs a GPU.
"""

from __future__ import annotations

import itertools
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.survey import Options, Row, Survey, portable

if TYPE_CHECKING:
    from torchproof.runtime.cudagraph.recorder import StepResult

TARGET = 0.95  # of the models whose eager step has no host sync
CALLS = 4
TRAINING = "_training"
PREFIX = "timm."
TRANSFORMERS = """
t5 bart bert gpt2 llama vit whisper mixtral clip roberta albert deberta-v2 longformer
big_bird xlm funnel canine esm nystromformer convbert modernbert tapas gpt_neox falcon
bloom mpt opt xlnet ctrl deepseek_v3 qwen3_moe gpt_oss mamba mamba2 jamba rwkv
recurrent_gemma mbart pegasus m2m_100 led longt5 switch_transformers speech_to_text
wav2vec2 hubert wavlm encodec swin beit convnext segformer dinov2 detr sam layoutlmv3
siglip blip vilt llava qwen2_vl idefics3 paligemma gemma3 perceiver
time_series_transformer informer patchtst
"""
# Their labels have another shape than the usual; the loss is the mean of the outputs.
WITHOUT_LABELS = ("layoutlmv3", "perceiver")
TIMM = """
resnet18 resnet50 resnext50_32x4d efficientnet_b0 densenet121 mobilenetv3_small_100
convnext_atto regnety_002 repvgg_a0 vit_tiny_patch16_224 deit_tiny_patch16_224
swin_tiny_patch4_window7_224 beit_base_patch16_224 cait_xxs24_224 coat_tiny
crossvit_tiny_240 eva02_tiny_patch14_224 ghostnet_100 levit_128s mixer_s32_224
mobilevit_xxs pit_ti_224 poolformer_s12 pvt_v2_b0 twins_svt_small xcit_nano_12_p16_224
edgenext_xx_small fastvit_t8 maxvit_tiny_tf_224 res2net50_26w_4s focalnet_tiny_srf
tinynet_e mambaout_femto
"""

Call = dict[str, Any]


def names() -> list[str]:
    """All targets, so mixed that a part of a sweep has some of every kind."""
    timm = [PREFIX + name for name in TIMM.split()]
    pairs = itertools.zip_longest(TRANSFORMERS.split(), timm)
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
        from benchmarks import transformers_models

        model, calls = transformers_models.make(plain, training, one_size=True)
        if plain in WITHOUT_LABELS:
            calls = [{n: v for n, v in call.items() if n != "labels"} for call in calls]
        if training and "decoder_input_ids" in calls[0] and "labels" in calls[0]:
            if getattr(model.config, "decoder_start_token_id", None) is None:
                model.config.decoder_start_token_id = 0
            for call in calls:
                del call["decoder_input_ids"]  # the model makes them from the labels
    return model.train(training), calls[:2]


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


def measure(name: str, options: Options) -> Row:
    import torchproof

    warnings.simplefilter("ignore")

    training = name.endswith(TRAINING)
    model, calls = made(name)
    twin, _ = made(name)
    model, twin = model.cuda(), twin.cuda()
    twin.load_state_dict(model.state_dict())
    calls = [
        {n: v.cuda() if hasattr(v, "cuda") else v for n, v in call.items()}
        for call in calls
    ]
    eager = Side(twin, eager_step(twin, training))
    eager.again(calls[0])  # what only the first call does
    row: Row = {"host_sync": host_sync(eager.again, calls[0])}
    twin.load_state_dict(model.state_dict())
    graphed = torchproof.graph(model, strategy="eager", train=training)
    graph = Side(model, lambda call: graphed(**call))
    row |= compared(graph, eager, calls)
    row |= outcome(graphed.status())
    row["parameters"] = sum(each.numel() for each in model.parameters())
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


def recorded_of(rows: list[Row]) -> tuple[int, int]:
    """How many are recorded of those without a host sync, and the number of these."""
    free = [row for row in rows if not row["host_sync"]]
    return sum(row["recorded"] for row in free), len(free)


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        if row["outputs"] == "wrong":
            yield f"{name}: outputs differ from eager"
    count, every = recorded_of(list(found.values()))
    if every and count / every < TARGET:
        yield f"{count} of {every} steps without a host sync are recorded"


SURVEY = Survey(
    "graph_coverage",
    lambda options: names(),
    measure,
    failures,
    quick=("bert", "gpt2_training", "timm.resnet18"),
    limit_s=150,
    jobs=6,
    packages=("transformers", "timm"),
    devices=("cuda",),
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
