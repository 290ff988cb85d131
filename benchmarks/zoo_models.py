"""The models of the survey: how each is built from a configuration, with its inputs.

Nothing is downloaded: the weights are random, and the sizes small. A library is
imported when the first of its models is built, so a missing one costs only its own
rows. Each model gets three calls of different sizes: the length of the sequence and the
batch, the side of the image, or the batch alone where the image has a fixed size. A
model that compiles into one dynamic graph is then compiled twice, and never again.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Call = tuple[Any, ...] | dict[str, Any]
Target = tuple[Any, list[Call]]
Factory = Callable[[], Target]

# The operators that torchvision's C library brings and its Python modules name at
# import. The library is built for one build of torch: next to another one it cannot be
# loaded, and the import fails. Models that classify images need none of them.
NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # alive as long as the operators


def declare_missing_operators() -> bool:
    """Lets torchvision be imported next to any build of torch; whether it had to."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    library = Path(spec.origin).parent / "_C.so"
    try:
        torch.ops.load_library(str(library))
    except OSError:
        if not _declared:
            _declared.append(torch.library.Library("torchvision", "FRAGMENT"))
            for name in ("nms", "qnms"):
                _declared[0].define(f"{name}{NMS}")
    return bool(_declared)


# -- transformers ----------------------------------------------------------------------

ENCODERS = """
bert roberta albert deberta deberta-v2 longformer big_bird xlm funnel canine esm
nystromformer convbert modernbert tapas distilbert electra xlm-roberta mobilebert
"""
DECODERS = """
gpt2 gpt_neox llama falcon bloom mpt opt xlnet reformer ctrl gpt_oss deepseek_v3 mistral
qwen2 qwen3 gemma gemma2 gemma3_text phi3 starcoder2 olmo2 cohere2 glm4 smollm3
llama4_text mixtral qwen3_moe olmoe mamba mamba2 jamba rwkv falcon_h1 recurrent_gemma
lfm2
"""
SEQUENCES = """
bart pegasus marian m2m_100 led bigbird_pegasus t5 longt5 fsmt prophetnet
switch_transformers nllb-moe seamless_m4t
"""
AUDIO = """
whisper speech_to_text speecht5 wav2vec2 wav2vec2-bert hubert sew wavlm encodec dac mimi
vits musicgen
"""
VISION = """
perceiver vit vit_mae deit swin beit convnext resnet mobilevit segformer dinov2
dinov3_vit sam detr deformable_detr yolos mask2former
"""
DOCUMENTS_AND_IMAGES = """
layoutlmv3 clip siglip owlvit blip blip-2 vilt llava llava_onevision qwen2_5_vl qwen3_vl
idefics3 smolvlm pixtral mllama paligemma gemma3 internvl
"""
SERIES = "time_series_transformer informer patchtst"
FAMILIES = (ENCODERS, DECODERS, SEQUENCES, AUDIO, VISION, DOCUMENTS_AND_IMAGES, SERIES)
TRAINED = """
bert gpt2 llama qwen3 bart t5 opt mixtral switch_transformers longformer whisper
wav2vec2 vit_mae detr patchtst
"""


def transformers_model(model_type: str, training: bool = False) -> Target:
    declare_missing_operators()
    from benchmarks import transformers_models as models

    model, calls = models.make(model_type, training)
    return _in_mode(model, training), list(calls)


def _in_mode(model: Any, training: bool = False) -> Any:
    """As it is trained, or as it is served: in eval mode, without gradients."""
    return model.train() if training else model.eval().requires_grad_(False)


# -- timm and torchvision: images ------------------------------------------------------

# The side of the image varies where the model takes any, otherwise the batch.
TIMM = """
resnet18 resnet50d res2net50d seresnet50 cspresnet50 densenet121 dla34
mobilenetv3_small_050 mobilenetv4_conv_small mobileone_s0 efficientnet_b0 ghostnet_050
regnety_002 repvgg_a0 mixnet_s hrnet_w18_small convnext_atto convnextv2_atto fastvit_t8
edgenext_xx_small mambaout_femto vit_tiny_patch16_224 deit_tiny_patch16_224
eva02_tiny_patch14_224 swin_tiny_patch4_window7_224 coat_tiny convit_tiny
xcit_nano_12_p16_224 levit_128s pvt_v2_b0 caformer_s18 mixer_s32_224 efficientformer_l1
efficientvit_b0 davit_tiny hiera_tiny_224 mobilevitv2_050
"""
TIMM_TRAINED = "resnet18 vit_tiny_patch16_224"


def timm_model(name: str, training: bool = False) -> Target:
    declare_missing_operators()
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=10)
    model = _in_mode(model, training)
    if model.default_cfg.get("fixed_input_size"):
        return model, _batches(*model.default_cfg["input_size"][1:])
    return model, _sides(64, 96, 128)


def _sides(*sides: int) -> list[Call]:
    return [(torch.randn(2, 3, side, side),) for side in sides]


def _batches(height: int, width: int) -> list[Call]:
    return [(torch.randn(batch, 3, height, width),) for batch in (2, 3, 4)]


TORCHVISION = """
resnet18 resnet50 resnext50_32x4d alexnet squeezenet1_0 densenet121 googlenet
inception_v3 mobilenet_v2 mobilenet_v3_small mnasnet0_5 shufflenet_v2_x0_5
efficientnet_b0 regnet_y_400mf convnext_tiny vit_b_32 swin_t maxvit_t
"""
SEGMENTATION = "fcn_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large"
DETECTION = "fasterrcnn_mobilenet_v3_large_320_fpn ssdlite320_mobilenet_v3_large"
VIDEO = "r3d_18"
FIXED = {"vit_b_32": 224, "maxvit_t": 224}  # images of one size only


def torchvision_model(name: str) -> Target:
    declare_missing_operators()
    from torchvision import models

    if name in SEGMENTATION.split():
        made = models.get_model(name, weights=None, weights_backbone=None)
        return _in_mode(made), _sides(64, 96, 128)
    if name in DETECTION.split():
        made = models.get_model(name, weights=None, weights_backbone=None)
        return _in_mode(made), _image_lists()
    model = _in_mode(models.get_model(name, weights=None))
    if name == VIDEO:
        sides = (32, 48, 64)
        return model, [(torch.randn(1, 3, 8, side, side),) for side in sides]
    if side := FIXED.get(name):
        return model, _batches(side, side)
    # The stem of Inception v3 needs 75 pixels.
    return model, _sides(96, 128, 160)


def _image_lists() -> list[Call]:
    """What a detector takes: images of any size, as a list."""
    return [([torch.rand(3, side, side + 32)],) for side in (96, 128, 160)]


# -- torch-geometric: graphs -----------------------------------------------------------

FEATURES, HIDDEN, CLASSES = 8, 16, 4
GRAPHS = ((20, 60), (30, 96), (40, 130))  # nodes and edges of each call
NODES = 40  # of models that have parameters for each node


def _graphs(*parts: str, nodes: int | None = None) -> Callable[[], list[Call]]:
    """Calls with these inputs; `batch` is the graph of each node: two in a batch."""

    def calls() -> list[Call]:
        return [_graph(parts, nodes or count, edges) for count, edges in GRAPHS]

    return calls


def _graph(parts: tuple[str, ...], nodes: int, edges: int) -> Call:
    make: dict[str, Callable[[], torch.Tensor]] = {
        "features": lambda: torch.randn(nodes, FEATURES),
        "edges": lambda: torch.randint(0, nodes, (2, edges)),
        "edge features": lambda: torch.randn(edges, 5),
        "batch": lambda: (torch.arange(nodes) >= nodes // 2).long(),
    }
    return tuple(make[part]() for part in parts)


_rows = _graphs("features")
_features = _graphs("features", "edges")
_features_of_graphs = _graphs("features", "edges", "batch")
_with_edge_features = _graphs("features", "edges", "edge features", "batch")
_edges_only = _graphs("edges", nodes=NODES)
_fixed_nodes = _graphs("features", "edges", nodes=NODES)
SIZES = (FEATURES, HIDDEN, 2, CLASSES)  # in, hidden, layers, out
ENDS = (FEATURES, HIDDEN, CLASSES)
PNA = {
    "aggregators": ["mean", "max", "std"],
    "scalers": ["identity", "amplification"],
    "deg": torch.tensor([0, 4, 8, 6, 2]),
}
Made = Callable[[Any], Any]  # takes torch_geometric.nn
GEOMETRIC: dict[str, tuple[Made, Callable[[], list[Call]]]] = {
    "mlp": (lambda nn: nn.MLP([FEATURES, HIDDEN, CLASSES]), _rows),
    "gcn": (lambda nn: nn.GCN(*SIZES), _features),
    "graphsage": (lambda nn: nn.GraphSAGE(*SIZES), _features),
    "gin": (lambda nn: nn.GIN(*SIZES), _features),
    "gat": (lambda nn: nn.GAT(*SIZES, heads=2), _features),
    "gatv2_jumping": (lambda nn: nn.GAT(*SIZES, v2=True, jk="cat"), _features),
    "pna": (lambda nn: nn.PNA(*SIZES, **PNA), _features),
    "edge_cnn": (lambda nn: nn.EdgeCNN(*SIZES), _features),
    "graph_unet": (lambda nn: nn.GraphUNet(*ENDS, depth=2), _features),
    "light_gcn": (lambda nn: nn.LightGCN(NODES, HIDDEN, 2), _edges_only),
    "linkx": (lambda nn: nn.LINKX(NODES, *ENDS, num_layers=2), _fixed_nodes),
    "rect_l": (lambda nn: nn.RECT_L(FEATURES, HIDDEN), _features),
    "pmlp": (lambda nn: nn.PMLP(*ENDS, num_layers=2), _features),
    "neural_fingerprint": (
        lambda nn: nn.NeuralFingerprint(*ENDS, num_layers=2),
        _features_of_graphs,
    ),
    "attentive_fp": (
        lambda nn: nn.AttentiveFP(*ENDS, edge_dim=5, num_layers=2, num_timesteps=2),
        _with_edge_features,
    ),
    "sgformer": (lambda nn: nn.SGFormer(*ENDS), _features_of_graphs),
    "polynormer": (
        lambda nn: nn.Polynormer(*ENDS, local_layers=2),
        _features_of_graphs,
    ),
    "transformer_conv": (
        lambda nn: nn.TransformerConv(FEATURES, HIDDEN, heads=2),
        _features,
    ),
    "cheb_conv": (lambda nn: nn.ChebConv(FEATURES, HIDDEN, K=3), _features),
}


def geometric_model(name: str) -> Target:
    declare_missing_operators()
    import torch_geometric.nn

    make, calls = GEOMETRIC[name]
    return _in_mode(make(torch_geometric.nn)), calls()


# -- all of them -----------------------------------------------------------------------


def _named(library: str, name: str, training: bool = False) -> str:
    plain = f"{library}_{name}".replace("-", "_").replace(".", "_")
    return f"{plain}_training" if training else plain


def _factories(
    library: str, make: Callable[..., Target], names: str, trained: str = ""
) -> dict[str, Factory]:
    """Those of `trained` in training as well; `make` is told only then."""
    found: dict[str, Factory] = {
        _named(library, n): functools.partial(make, n) for n in names.split()
    }
    for name in trained.split():
        training = functools.partial(make, name, training=True)
        found[_named(library, name, True)] = training
    return found


LIBRARIES: dict[str, dict[str, Factory]] = {
    "transformers": _factories(
        "transformers", transformers_model, " ".join(FAMILIES), TRAINED
    ),
    "timm": _factories("timm", timm_model, TIMM, TIMM_TRAINED),
    "torchvision": _factories(
        "torchvision",
        torchvision_model,
        " ".join((TORCHVISION, SEGMENTATION, DETECTION, VIDEO)),
    ),
    "torch-geometric": _factories("geometric", geometric_model, " ".join(GEOMETRIC)),
}
FACTORIES = {
    name: make for factories in LIBRARIES.values() for name, make in factories.items()
}
