"""Small programs that use packages of others as their documentation does.

Each function is one target of benchmarks/compile_users.py, named after what it uses. A
factory returns a model and calls, with random weights and no downloads. The body of a
script is a program of its own. The packages are imported inside, so that a target whose
package is not installed can be skipped.
"""

# ruff: noqa: F841
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Made = tuple[Any, list[Any]]


@dataclass(frozen=True)
class Target:
    """A program, and how `check` runs it."""

    name: str
    package: str
    body: Callable[[], Any]
    is_script: bool = False
    options: tuple[str, ...] = ()


TARGETS: dict[str, Target] = {}


def factory(package: str, *options: str) -> Callable[[Callable[[], Made]], Any]:
    def add(body: Callable[[], Made]) -> Callable[[], Made]:
        name = body.__name__
        TARGETS[name] = Target(name, package, body, options=options)
        return body

    return add


def script(package: str) -> Callable[[Callable[[], None]], Any]:
    def add(body: Callable[[], None]) -> Callable[[], None]:
        name = body.__name__
        TARGETS[name] = Target(name, package, body, is_script=True)
        return body

    return add


@factory("diffusers")
def diffusers_unet2d() -> Made:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )
    return model.eval(), [(torch.randn(1, 3, 16, 16), t) for t in (999, 500, 20, 1)]


@factory("diffusers", "--train")
def diffusers_unet_condition() -> Made:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    calls = [
        (torch.randn(n, 4, 16, 16), torch.randint(0, 1000, (n,)), torch.randn(n, 7, 32))
        for n in (2, 2, 3, 4)
    ]
    return model, calls


@factory("diffusers")
def diffusers_vae_decode() -> Made:
    from diffusers import AutoencoderKL

    vae = AutoencoderKL(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    ).eval()
    return vae.decode, [(torch.randn(n, 4, 8, 8),) for n in (1, 2, 3)]


@factory("diffusers")
def diffusers_flux() -> Made:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ).eval()
    calls = [
        {
            "hidden_states": torch.randn(1, length, 16),
            "encoder_hidden_states": torch.randn(1, 6, 32),
            "pooled_projections": torch.randn(1, 32),
            "timestep": torch.tensor([0.5]),
            "img_ids": torch.zeros(length, 3),
            "txt_ids": torch.zeros(6, 3),
            "guidance": None,
        }
        for length in (16, 16, 24, 36)
    ]
    return model, calls


@script("diffusers")
def diffusers_denoising_loop() -> None:
    import torch
    from diffusers import DDIMScheduler, UNet2DModel

    unet = UNet2DModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    ).eval()
    scheduler = DDIMScheduler(num_train_timesteps=100)
    scheduler.set_timesteps(6)
    unet = torch.compile(unet)
    sample = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        for t in scheduler.timesteps:
            noise = unet(sample, t).sample
            sample = scheduler.step(noise, t, sample).prev_sample
    print(sample.mean().item())


@script("diffusers")
def diffusers_compiled_scheduler() -> None:
    import torch
    from diffusers import EulerDiscreteScheduler

    scheduler = EulerDiscreteScheduler(num_train_timesteps=100)
    scheduler.set_timesteps(5)
    step = torch.compile(scheduler.step)
    sample = torch.randn(1, 3, 8, 8)
    for t in scheduler.timesteps:
        scaled = scheduler.scale_model_input(sample, t)
        sample = step(scaled * 0.1, t, sample).prev_sample
    print(sample.mean().item())


@factory("timm", "--train")
def timm_vit_train() -> Made:
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5, drop_path_rate=0.2
    )
    return model, [(torch.randn(n, 3, 32, 32),) for n in (4, 4, 4, 3)]


@factory("timm")
def timm_swin_sizes() -> Made:
    import timm

    model = timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=56,
        depths=(1, 1),
        embed_dim=16,
        num_heads=(2, 2),
        num_classes=5,
        strict_img_size=False,
    ).eval()
    return model, [(torch.randn(2, 3, n, n),) for n in (56, 56, 112, 84)]


@factory("timm", "--train")
def timm_efficientnet_train() -> Made:
    import timm

    model = timm.create_model("mobilenetv3_small_050", num_classes=5)
    return model, [(torch.randn(4, 3, 32, 32),) for _ in range(3)]


@factory("timm")
def timm_convnext_features() -> Made:
    import timm

    model = timm.create_model(
        "convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), features_only=True
    ).eval()
    return model, [(torch.randn(1, 3, n, n),) for n in (64, 96, 128)]


@script("timm")
def timm_train_script() -> None:
    import timm
    import torch
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import AverageMeter, ModelEmaV3, accuracy

    model = timm.create_model("resnet10t", num_classes=5)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    scheduler = CosineLRScheduler(optimizer, t_initial=4)
    ema = ModelEmaV3(model, decay=0.9)
    compiled = torch.compile(model)
    loss_fn, losses = SoftTargetCrossEntropy(), AverageMeter()
    for step in range(4):
        images, target = torch.randn(4, 3, 32, 32), torch.rand(4, 5).softmax(-1)
        loss = loss_fn(compiled(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model, step=step)
        scheduler.step(step + 1)
        losses.update(loss.item(), 4)
    compiled.eval()
    with torch.no_grad():
        top1, _ = accuracy(compiled(torch.randn(4, 3, 32, 32)), torch.arange(4), (1, 5))
    print(losses.avg, top1)


@script("accelerate")
def accelerate_train_script() -> None:
    import torch
    from accelerate import Accelerator
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(cpu=True, dynamo_backend="inductor")
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(22, 8), torch.randint(0, 3, (22,)))
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=4)
    )
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    print(accelerator.gather(loss.detach()).mean().item())


@script("accelerate")
def accelerate_regional_script() -> None:
    import torch
    from accelerate.utils import compile_regions
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.linear(x).relu()

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(4))
            self.head = nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    model = compile_regions(Stack())
    for n in (4, 4, 5):
        print(model(torch.randn(n, 16)).shape)


@script("lightning")
def lightning_trainer_script() -> None:
    import lightning
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

        def training_step(self, batch, index):
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    module = torch.compile(Module())
    data = TensorDataset(torch.randn(16, 8), torch.randint(0, 3, (16,)))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, DataLoader(data, batch_size=4))


@script("lightning")
def lightning_fabric_script() -> None:
    import torch
    from lightning.fabric import Fabric
    from torch import nn

    fabric = Fabric(accelerator="cpu", devices=1)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = torch.compile(model)
    model, optimizer = fabric.setup(model, optimizer)
    for _ in range(4):
        loss = model(torch.randn(4, 8)).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item())


@factory("kornia")
def kornia_filters() -> Made:
    import kornia

    def process(image: torch.Tensor) -> torch.Tensor:
        image = kornia.filters.gaussian_blur2d(image, (5, 5), (1.5, 1.5))
        edges = kornia.filters.sobel(image)
        return kornia.color.rgb_to_hsv(image) + edges

    return process, [(torch.rand(2, 3, n, n),) for n in (16, 16, 24, 32)]


@factory("kornia")
def kornia_augmentation() -> Made:
    import kornia.augmentation as K

    transform = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5),
        K.RandomAffine(degrees=10.0, p=1.0),
        K.ColorJiggle(0.1, 0.1, 0.1, 0.1, p=1.0),
    )
    return transform, [(torch.rand(2, 3, 16, 16),) for _ in range(4)]


@factory("kornia")
def kornia_warp() -> Made:
    import kornia

    def warp(image: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        matrix = kornia.geometry.get_perspective_transform(points, points + 1)
        return kornia.geometry.warp_perspective(image, matrix, (12, 12))

    corners = torch.tensor([[[0.0, 0.0], [11.0, 0.0], [11.0, 11.0], [0.0, 11.0]]])
    return warp, [(torch.rand(1, 3, 12, 12), corners + i) for i in range(3)]


@factory("x_transformers", "--train")
def x_transformers_decoder() -> Made:
    from x_transformers import Decoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=50,
        max_seq_len=32,
        attn_layers=Decoder(
            dim=32, depth=2, heads=2, attn_dim_head=16, rotary_pos_emb=True
        ),
    )
    return model, [(torch.randint(0, 50, (2, n)),) for n in (16, 16, 20, 24)]


@factory("x_transformers", "--train")
def x_transformers_autoregressive() -> Made:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    net = TransformerWrapper(
        num_tokens=50, max_seq_len=32, attn_layers=Decoder(dim=32, depth=1, heads=2)
    )
    model = AutoregressiveWrapper(net, mask_prob=0.15)
    return model, [(torch.randint(0, 50, (2, 17)),) for _ in range(4)]


@factory("vector_quantize_pytorch", "--train")
def vq_train() -> Made:
    from vector_quantize_pytorch import VectorQuantize

    vq = VectorQuantize(
        dim=16, codebook_size=32, decay=0.8, commitment_weight=1.0, kmeans_init=True
    )
    return vq, [(torch.randn(2, 24, 16),) for _ in range(4)]


@factory("vector_quantize_pytorch")
def vq_residual() -> Made:
    from vector_quantize_pytorch import ResidualVQ

    vq = ResidualVQ(dim=16, num_quantizers=3, codebook_size=32, quantize_dropout=True)
    return vq.train(), [(torch.randn(2, 24, 16),) for _ in range(4)]


@factory("vector_quantize_pytorch", "--train")
def vq_fsq() -> Made:
    from vector_quantize_pytorch import FSQ

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Linear(8, 3)
            self.fsq = FSQ(levels=[8, 5, 5])
            self.decode = nn.Linear(3, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            quantized, _ = self.fsq(self.encode(x))
            return self.decode(quantized)

    return Autoencoder(), [(torch.randn(2, n, 8),) for n in (8, 8, 12)]


@script("ema_pytorch")
def ema_script() -> None:
    import torch
    from ema_pytorch import EMA
    from torch import nn

    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    ema = EMA(net, beta=0.99, update_after_step=1, update_every=1)
    compiled = torch.compile(net)
    update = torch.compile(ema.update)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        compiled(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        update()
    print(ema(torch.randn(4, 8)).shape)


@factory("rotary_embedding_torch")
def rotary_lengths() -> Made:
    from rotary_embedding_torch import RotaryEmbedding

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rotary = RotaryEmbedding(dim=16)
            self.qkv = nn.Linear(32, 96)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = self.qkv(x).unflatten(-1, (3, 2, 16)).transpose(1, 3)
            q, k, v = parts.unbind(2)
            q, k = (self.rotary.rotate_queries_or_keys(t) for t in (q, k))
            return nn.functional.scaled_dot_product_attention(q, k, v)

    return Attention(), [(torch.randn(2, n, 32),) for n in (8, 8, 12, 16)]


@factory("e3nn")
def e3nn_tensor_product() -> Made:
    from e3nn import o3

    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sh = o3.Irreps.spherical_harmonics(2)
            self.tp = o3.FullyConnectedTensorProduct("4x0e+4x1o", self.sh, "4x0e+4x1o")

        def forward(self, x: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
            edges = o3.spherical_harmonics(self.sh, vectors, normalize=True)
            return self.tp(x, edges)

    return Convolution(), [
        (torch.randn(n, 16), torch.randn(n, 3)) for n in (10, 10, 12, 17)
    ]


@factory("gpytorch")
def gpytorch_exact_loss() -> Made:
    import gpytorch

    class GP(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.RBFKernel()
            )

        def forward(self, x):
            mean, covariance = self.mean_module(x), self.covar_module(x)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    x, y = torch.linspace(0, 1, 12), torch.randn(12)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = GP(x, y, likelihood).train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def loss(inputs: torch.Tensor) -> torch.Tensor:
        return -mll(model(inputs), y)

    return loss, [(x,) for _ in range(3)]


@factory("tensordict")
def tensordict_module() -> Made:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    first = TensorDictModule(nn.Linear(4, 8), in_keys=["a"], out_keys=["hidden"])
    second = TensorDictModule(nn.Linear(8, 2), in_keys=["hidden"], out_keys=["out"])
    calls = [
        (TensorDict({"a": torch.randn(n, 4)}, batch_size=[n]),) for n in (3, 3, 5, 7)
    ]
    return TensorDictSequential(first, second), calls


@script("tensordict")
def tensordict_update_script() -> None:
    import torch
    from tensordict import TensorDict, from_module
    from torch import nn

    net = nn.Linear(4, 2)
    params = from_module(net)

    @torch.compile
    def update(params: TensorDict, x: torch.Tensor) -> torch.Tensor:
        with params.to_module(net):
            return net(x).square().mean()

    for _ in range(4):
        loss = update(params, torch.randn(3, 4))
        loss.backward()
    print(loss.item())


@factory("torch_geometric", "--train")
def pyg_gcn() -> Made:
    from torch_geometric.nn import GCN

    model = GCN(8, 16, num_layers=2, out_channels=3)
    sizes = [(10, 20), (12, 30), (15, 33), (9, 14)]
    calls = [(torch.randn(n, 8), torch.randint(0, n, (2, e))) for n, e in sizes]
    return model, calls


@factory("torch_geometric")
def pyg_gat_pooling() -> Made:
    from torch_geometric.nn import GATConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GATConv(8, 4, heads=2)
            self.head = nn.Linear(8, 2)

        def forward(self, x, edge_index, batch):
            x = self.conv(x, edge_index).relu()
            return self.head(global_mean_pool(x, batch))

    calls = [
        (
            torch.randn(n, 8),
            torch.randint(0, n, (2, 3 * n)),
            torch.arange(n).div(4, rounding_mode="floor"),
        )
        for n in (8, 8, 12, 16)
    ]
    return Net().eval(), calls


@script("torch_geometric")
def pyg_train_script() -> None:
    import torch
    import torch_geometric
    from torch_geometric.nn import GraphSAGE

    x, edge_index = torch.randn(40, 8), torch.randint(0, 40, (2, 120))
    y, mask = torch.randint(0, 3, (40,)), torch.rand(40) < 0.5
    model = torch_geometric.compile(GraphSAGE(8, 16, num_layers=2, out_channels=3))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        out = model(x, edge_index)
        loss = torch.nn.functional.cross_entropy(out[mask], y[mask])
        loss.backward()
        optimizer.step()
    print(loss.item())


@script("pytorch_optimizer")
def pytorch_optimizer_script() -> None:
    import torch
    from pytorch_optimizer import AdaBelief
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = AdaBelief(model.parameters(), lr=1e-3)
    step = torch.compile(optimizer.step)
    for _ in range(5):
        model(torch.randn(4, 8)).mean().backward()
        step()
        optimizer.zero_grad()
    print(model[0].weight.mean().item())


@script("pytorch_optimizer")
def pytorch_optimizer_muon_script() -> None:
    import torch
    from pytorch_optimizer import load_optimizer
    from torch import nn

    model = nn.Linear(8, 8, bias=False)
    optimizer = load_optimizer("lion")(model.parameters(), lr=1e-3)

    @torch.compile
    def train_step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(4):
        print(train_step(torch.randn(4, 8)).item())


@script("heavyball")
def heavyball_script() -> None:
    import heavyball
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = heavyball.AdamW(model.parameters(), lr=1e-3)
    for _ in range(4):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(model[0].weight.mean().item())


@factory("heavyball")
def heavyball_forward_only() -> Made:
    import heavyball

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model.optimizer = heavyball.AdamW(model.parameters(), lr=1e-3)
    return model, [(torch.randn(4, 8),) for _ in range(3)]


@script("schedulefree")
def schedulefree_script() -> None:
    import schedulefree
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-3)
    compiled = torch.compile(model)
    optimizer.train()
    for _ in range(4):
        compiled(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.eval()
    compiled.eval()
    with torch.no_grad():
        print(compiled(torch.randn(4, 8)).mean().item())


@script("schedulefree")
def schedulefree_compiled_step() -> None:
    import schedulefree
    import torch
    from torch import nn

    model = nn.Linear(8, 4)
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-3)
    optimizer.train()
    step = torch.compile(lambda: optimizer.step())
    for _ in range(6):
        model(torch.randn(4, 8)).square().mean().backward()
        step()
        optimizer.zero_grad()


@factory("torchao")
def torchao_int8() -> Made:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    quantize_(model, Int8WeightOnlyConfig())
    return model, [(torch.randn(n, 64),) for n in (2, 2, 3, 4)]


@factory("litgpt", "--train")
def litgpt_train() -> Made:
    from litgpt import GPT, Config

    config = Config(
        block_size=32,
        n_layer=2,
        n_head=2,
        n_embd=32,
        vocab_size=64,
        padded_vocab_size=64,
    )
    return GPT(config), [(torch.randint(0, 64, (2, n)),) for n in (16, 16, 24, 32)]


@script("litgpt")
def litgpt_generate_script() -> None:
    import torch
    from litgpt import GPT, Config
    from litgpt.generate import base

    config = Config(
        block_size=32,
        n_layer=2,
        n_head=2,
        n_embd=32,
        vocab_size=64,
        padded_vocab_size=64,
    )
    model = GPT(config).eval()
    model.set_kv_cache(batch_size=1)
    base.next_token = torch.compile(base.next_token)
    prompt = torch.randint(0, 64, (5,))
    with torch.no_grad():
        print(base.generate(model, prompt, max_returned_tokens=12, temperature=0.8))


@factory("open_clip", "--train")
def open_clip_train() -> Made:
    from open_clip.model import CLIP

    model = CLIP(
        embed_dim=16,
        vision_cfg={"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        text_cfg={
            "context_length": 8,
            "vocab_size": 50,
            "width": 32,
            "heads": 2,
            "layers": 1,
        },
    )
    return model, [
        (torch.randn(n, 3, 32, 32), torch.randint(0, 50, (n, 8))) for n in (4, 4, 3)
    ]


@factory("peft", "--train")
def peft_lora_train() -> Made:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
    )
    lora = LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(LlamaForCausalLM(config), lora).train()
    calls = []
    for length in (16, 16, 24):
        ids = torch.randint(0, 64, (2, length))
        calls.append({"input_ids": ids, "labels": ids})
    return model, calls


@script("peft")
def peft_switch_adapters_script() -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).relu())

    config = LoraConfig(r=2, target_modules=["first", "second"])
    model = get_peft_model(Net(), config, adapter_name="one")
    model.add_adapter("two", config)
    compiled = torch.compile(model)
    for name in ("one", "two", "one", "two"):
        model.set_adapter(name)
        print(compiled(torch.randn(3, 8)).shape)
    with model.disable_adapter():
        print(compiled(torch.randn(3, 8)).shape)


@factory("chronos")
def chronos_bolt() -> Made:
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    config = T5Config(
        d_model=32,
        d_ff=64,
        d_kv=16,
        num_layers=1,
        num_heads=2,
        vocab_size=2,
        decoder_start_token_id=0,
    )
    config.chronos_config = {
        "context_length": 64,
        "prediction_length": 16,
        "input_patch_size": 8,
        "input_patch_stride": 8,
        "quantiles": [0.1, 0.5, 0.9],
        "use_reg_token": True,
    }
    model = ChronosBoltModelForForecasting(config).eval()
    return model, [(torch.randn(2, n),) for n in (32, 32, 40, 64)]


@factory("neuralop", "--train")
def neuralop_fno() -> Made:
    from neuralop.models import FNO

    model = FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8)
    return model, [(torch.randn(2, 1, n, n),) for n in (16, 16, 24)]


@factory("monai", "--train")
def monai_unet_dice() -> Made:
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    class Segmenter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = UNet(2, 1, 2, channels=(4, 8, 16), strides=(2, 2))
            self.loss = DiceCELoss(to_onehot_y=True, softmax=True)

        def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return self.loss(self.net(image), label)

    calls = [
        (torch.randn(2, 1, 16, 16), torch.randint(0, 2, (2, 1, 16, 16)))
        for _ in range(3)
    ]
    return Segmenter(), calls


@factory("monai")
def monai_sliding_window() -> Made:
    from monai.inferers import sliding_window_inference
    from monai.networks.nets import UNet

    net = UNet(2, 1, 2, channels=(4, 8), strides=(2,)).eval()

    def infer(image: torch.Tensor) -> torch.Tensor:
        return sliding_window_inference(image, (16, 16), 2, net, overlap=0.25)

    return infer, [(torch.randn(1, 1, n, n),) for n in (32, 32, 40)]


@factory("monai")
def monai_swin_unetr() -> Made:
    from monai.networks.nets import SwinUNETR

    model = SwinUNETR(
        in_channels=1,
        out_channels=2,
        feature_size=12,
        spatial_dims=2,
        depths=(1, 1, 1, 1),
    ).eval()
    return model, [(torch.randn(1, 1, 64, 64),) for _ in range(3)]


@factory("speechbrain", "--train")
def speechbrain_conformer() -> Made:
    from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder
    from speechbrain.nnet.attention import RelPosEncXL

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = RelPosEncXL(16)
            self.encoder = ConformerEncoder(1, 16, 32, nhead=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(x, pos_embs=self.positions(x))[0]

    return Encoder(), [(torch.randn(2, n, 16),) for n in (20, 20, 30, 25)]


@factory("speechbrain")
def speechbrain_features() -> Made:
    from speechbrain.lobes.features import Fbank

    return Fbank(n_mels=20), [(torch.randn(2, n),) for n in (8000, 8000, 12000)]


@factory("denoising_diffusion_pytorch", "--train")
def ddpm_train() -> Made:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    net = Unet(dim=16, dim_mults=(1, 2), flash_attn=False)
    model = GaussianDiffusion(net, image_size=16, timesteps=20)
    return model, [(torch.rand(2, 3, 16, 16),) for _ in range(4)]


@factory("denoising_diffusion_pytorch")
def ddpm_unet1d() -> Made:
    from denoising_diffusion_pytorch import Unet1D

    net = Unet1D(dim=16, dim_mults=(1, 2), channels=4).eval()
    return net, [(torch.randn(2, 4, n), torch.tensor([3, 7])) for n in (16, 16, 32)]


@factory("segmentation_models_pytorch", "--train")
def smp_unet() -> Made:
    import segmentation_models_pytorch as smp

    class Segmenter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = smp.Unet("resnet18", encoder_weights=None, classes=1)
            self.loss = smp.losses.DiceLoss("binary")

        def forward(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.loss(self.net(image), mask)

    calls = [(torch.randn(2, 3, n, n), torch.ones(2, 1, n, n)) for n in (32, 32, 64)]
    return Segmenter(), calls


@factory("torchdiffeq", "--train")
def torchdiffeq_odeint() -> Made:
    from torchdiffeq import odeint

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return odeint(lambda _, y: self.net(y), x, t, method="dopri5")

    return Flow(), [(torch.randn(4, 2), torch.linspace(0, 1, 3)) for _ in range(3)]


@factory("torchdiffeq")
def torchdiffeq_fixed_steps() -> Made:
    from torchdiffeq import odeint

    field = nn.Linear(2, 2)

    def solve(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return odeint(lambda _, y: field(y), x, t, method="rk4")

    return solve, [(torch.randn(4, 2), torch.linspace(0, 1, 4)) for _ in range(3)]


@factory("vit_pytorch", "--train")
def vit_pytorch_cait() -> Made:
    from vit_pytorch.cait import CaiT

    model = CaiT(
        image_size=32,
        patch_size=8,
        num_classes=5,
        dim=32,
        depth=3,
        cls_depth=1,
        heads=2,
        mlp_dim=64,
        layer_dropout=0.3,
    )
    return model, [(torch.randn(n, 3, 32, 32),) for n in (4, 4, 3, 4)]


@factory("vit_pytorch")
def vit_pytorch_navit() -> Made:
    from vit_pytorch.na_vit import NaViT

    model = NaViT(
        image_size=32, patch_size=8, num_classes=5, dim=32, depth=1, heads=2, mlp_dim=64
    ).eval()
    groups = [
        [[torch.randn(3, 16, 24), torch.randn(3, 32, 8)], [torch.randn(3, 24, 24)]],
        [[torch.randn(3, 16, 24), torch.randn(3, 32, 8)], [torch.randn(3, 24, 24)]],
        [[torch.randn(3, 32, 32)], [torch.randn(3, 8, 24), torch.randn(3, 16, 16)]],
    ]
    return model, [(group,) for group in groups]


@factory("local_attention")
def local_attention_lengths() -> Made:
    from local_attention.transformer import LocalTransformer

    model = LocalTransformer(
        num_tokens=50,
        dim=32,
        depth=1,
        max_seq_len=64,
        causal=True,
        local_attn_window_size=8,
    ).eval()
    return model, [(torch.randint(0, 50, (1, n)),) for n in (16, 16, 24, 32)]


@factory("perceiver_pytorch")
def perceiver_forward() -> Made:
    from perceiver_pytorch import Perceiver

    model = Perceiver(
        input_channels=3,
        input_axis=2,
        num_freq_bands=4,
        max_freq=10.0,
        depth=2,
        num_latents=8,
        latent_dim=16,
        num_classes=5,
        weight_tie_layers=True,
    ).eval()
    return model, [(torch.randn(2, n, n, 3),) for n in (8, 8, 12)]


@factory("st_moe_pytorch", "--train")
def st_moe_train() -> Made:
    from st_moe_pytorch import MoE

    model = MoE(dim=16, num_experts=4, gating_top_n=2)
    return model, [(torch.randn(2, n, 16),) for n in (12, 12, 16)]


@factory("soft_moe_pytorch", "--train")
def soft_moe_train() -> Made:
    from soft_moe_pytorch import SoftMoE

    model = SoftMoE(dim=16, seq_len=12, num_experts=3)
    return model, [(torch.randn(2, 12, 16),) for _ in range(3)]


@factory("mambapy", "--train")
def mambapy_train() -> Made:
    from mambapy.mamba import Mamba, MambaConfig

    model = Mamba(MambaConfig(d_model=16, n_layers=1))
    return model, [(torch.randn(2, n, 16),) for n in (16, 16, 24)]


@factory("zuko", "--train")
def zuko_flow() -> Made:
    import zuko

    class Density(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = zuko.flows.NSF(3, 2, transforms=2, hidden_features=(16, 16))

        def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
            return -self.flow(context).log_prob(x).mean()

    return Density(), [(torch.randn(n, 3), torch.randn(n, 2)) for n in (8, 8, 12)]


@script("flow_matching")
def flow_matching_script() -> None:
    import torch
    from flow_matching.path import AffineProbPath
    from flow_matching.path.scheduler import CondOTScheduler
    from flow_matching.solver import ODESolver
    from torch import nn

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 16), nn.ELU(), nn.Linear(16, 2))

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return self.net(torch.cat([x, t.reshape(-1, 1).expand(x.shape[0], 1)], -1))

    field = torch.compile(Field())
    path = AffineProbPath(scheduler=CondOTScheduler())
    optimizer = torch.optim.Adam(field.parameters())
    for _ in range(4):
        sample = path.sample(
            t=torch.rand(8), x_0=torch.randn(8, 2), x_1=torch.randn(8, 2)
        )
        loss = (field(sample.x_t, sample.t) - sample.dx_t).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    solver = ODESolver(velocity_model=lambda x, t, **_: field(x, t))
    print(solver.sample(torch.randn(8, 2), step_size=0.25).shape)


@factory("pytorch_metric_learning", "--train")
def metric_learning_triplet() -> Made:
    from pytorch_metric_learning import losses, miners

    class Embedder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 4)
            self.miner = miners.MultiSimilarityMiner()
            self.loss = losses.TripletMarginLoss()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            embeddings = self.net(x)
            return self.loss(embeddings, labels, self.miner(embeddings, labels))

    calls = [(torch.randn(12, 8), torch.randint(0, 3, (12,))) for _ in range(3)]
    return Embedder(), calls


@factory("lightly", "--train")
def lightly_ntxent() -> Made:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    class SimCLR(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Linear(8, 16)
            self.head = SimCLRProjectionHead(16, 16, 8)
            self.loss = NTXentLoss(memory_bank_size=0)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            a, b = (self.head(self.backbone(each)) for each in (a, b))
            return self.loss(a, b)

    return SimCLR(), [(torch.randn(6, 8), torch.randn(6, 8)) for _ in range(3)]


@script("optimi")
def optimi_script() -> None:
    import optimi
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = optimi.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=6)

    @torch.compile
    def step() -> None:
        optimizer.step()

    for _ in range(6):
        model(torch.randn(4, 8)).square().mean().backward()
        step()
        scheduler.step()
        optimizer.zero_grad()


@script("lion_pytorch")
def lion_script() -> None:
    import torch
    from lion_pytorch import Lion
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = Lion(model.parameters(), lr=1e-4, weight_decay=1e-2)
    compiled_step = torch.compile(optimizer.step)  # never used below
    compiled = torch.compile(model)
    for _ in range(4):
        compiled(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@script("muon")
def muon_script() -> None:
    import torch
    from muon import SingleDeviceMuonWithAuxAdam
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    weights = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": weights, "use_muon": True, "lr": 0.02},
        {"params": others, "use_muon": False, "lr": 1e-3},
    ]
    optimizer = SingleDeviceMuonWithAuxAdam(groups)
    step = torch.compile(optimizer.step)
    for _ in range(5):
        model(torch.randn(4, 8)).square().mean().backward()
        step()
        optimizer.zero_grad()


@script("adam_atan2_pytorch")
def adam_atan2_script() -> None:
    import torch
    from adam_atan2_pytorch import AdamAtan2
    from torch import nn

    model = nn.Linear(8, 4)
    optimizer = AdamAtan2(model.parameters(), lr=1e-3)
    step = torch.compile(optimizer.step)
    for _ in range(5):
        model(torch.randn(4, 8)).square().mean().backward()
        step()
        optimizer.zero_grad()


@factory("torchmetrics")
def torchmetrics_update() -> Made:
    from torchmetrics.classification import MulticlassAccuracy

    class Evaluation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 4)
            self.accuracy = MulticlassAccuracy(num_classes=4)

        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            logits = self.net(x)
            self.accuracy.update(logits, target)
            return logits

    calls = [(torch.randn(6, 8), torch.randint(0, 4, (6,))) for _ in range(4)]
    return Evaluation(), calls


@factory("demucs")
def demucs_separate() -> Made:
    from demucs.demucs import Demucs

    model = Demucs(sources=["a", "b"], channels=8, depth=3, lstm_layers=1).eval()
    return model, [(torch.randn(1, 2, 8192),) for _ in range(3)]


@factory("auraloss", "--train")
def auraloss_stft() -> Made:
    from auraloss.freq import MultiResolutionSTFTLoss

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Conv1d(1, 1, 9, padding=4)
            self.loss = MultiResolutionSTFTLoss([128, 256], [32, 64], [64, 128])

        def forward(self, noisy: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
            return self.loss(self.net(noisy), clean)

    return Denoiser(), [
        (torch.randn(2, 1, n), torch.randn(2, 1, n)) for n in (2048, 2048, 3000)
    ]


@factory("pytorch_msssim", "--train")
def msssim_loss() -> Made:
    from pytorch_msssim import SSIM

    class Restore(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Conv2d(3, 3, 3, padding=1)
            self.ssim = SSIM(data_range=1.0)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return 1 - self.ssim(self.net(image), image)

    return Restore(), [(torch.rand(2, 3, n, n),) for n in (24, 24, 32)]


@factory("rtdl_revisiting_models", "--train")
def rtdl_ft_transformer() -> Made:
    from rtdl_revisiting_models import FTTransformer

    options = FTTransformer.get_default_kwargs(n_blocks=1)
    model = FTTransformer(
        n_cont_features=4, cat_cardinalities=[3, 5], d_out=1, **options
    )
    calls = [(torch.randn(n, 4), torch.randint(0, 3, (n, 2))) for n in (8, 8, 6, 1)]
    return model, calls


@factory("tabm", "--train")
def tabm_train() -> Made:
    from tabm import TabM

    model = TabM.make(n_num_features=4, d_out=2, k=4, n_blocks=1, d_block=16)
    return model, [(torch.randn(n, 4),) for n in (8, 8, 6)]


@factory("segment_anything")
def sam_image_encoder() -> Made:
    from segment_anything.modeling import ImageEncoderViT

    model = ImageEncoderViT(
        img_size=64,
        patch_size=16,
        embed_dim=32,
        depth=2,
        num_heads=2,
        out_chans=8,
        use_rel_pos=True,
        window_size=2,
        global_attn_indexes=(1,),
    ).eval()
    return model, [(torch.randn(n, 3, 64, 64),) for n in (1, 1, 2)]


@script("stable_baselines3")
def sb3_policy_script() -> None:
    import gymnasium
    import torch
    from stable_baselines3.common.policies import ActorCriticPolicy

    policy = ActorCriticPolicy(
        gymnasium.spaces.Box(-1.0, 1.0, (4,)),
        gymnasium.spaces.Discrete(2),
        lambda _: 1e-3,
    )
    policy.set_training_mode(False)
    predict = torch.compile(policy.forward)
    evaluate = torch.compile(policy.evaluate_actions)
    for n in (1, 1, 4):
        _, values, log_prob = predict(torch.randn(n, 4))
    values, log_prob, entropy = evaluate(torch.randn(4, 4), torch.randint(0, 2, (4,)))
    (values.mean() + entropy.mean()).backward()
    print(log_prob.shape)


@script("ignite")
def ignite_script() -> None:
    import torch
    from ignite.engine import Events, create_supervised_trainer
    from torch import nn

    model = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.Adam(model.parameters())
    trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())

    @trainer.on(Events.ITERATION_COMPLETED)
    def log(engine):
        print(engine.state.iteration, engine.state.output)

    sizes = (4, 4, 4, 2)
    trainer.run([(torch.randn(n, 8), torch.randint(0, 3, (n,))) for n in sizes])


@factory("timesfm")
def timesfm_layers() -> Made:
    from timesfm import configs
    from timesfm.torch.transformer import Transformer

    config = configs.TransformerConfig(
        model_dims=32,
        hidden_dims=32,
        num_heads=2,
        attention_norm="rms",
        feedforward_norm="rms",
        qk_norm="rms",
        use_bias=False,
        use_rotary_position_embeddings=True,
        ff_activation="swish",
        fuse_qkv=True,
    )
    model = Transformer(config).eval()
    return model, [
        (torch.randn(2, n, 32), torch.zeros(2, n, dtype=torch.bool)) for n in (8, 8, 12)
    ]


@factory("colt5_attention")
def colt5_feedforward() -> Made:
    from colt5_attention import ConditionalRoutedFeedForward

    model = ConditionalRoutedFeedForward(16, num_heavy_tokens=4).eval()
    return model, [(torch.randn(2, n, 16),) for n in (12, 12, 16)]


@factory("pyro")
def pyro_elbo() -> Made:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Trace_ELBO

    def model(x: torch.Tensor) -> None:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        pyro.sample("obs", dist.Normal(0.0, scale).expand([len(x)]).to_event(1), obs=x)

    def guide(x: torch.Tensor) -> None:
        loc = pyro.param("loc", torch.tensor(0.0))
        pyro.sample("scale", dist.LogNormal(loc, 1.0))

    elbo = Trace_ELBO()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return elbo.differentiable_loss(model, guide, x)

    return loss, [(torch.randn(8),) for _ in range(3)]
