"""Small programs that use packages of others as their documentation does.

Each function is one row of benchmarks/packages.py, named after what it uses. A factory
returns a model and calls, with random weights and no downloads. The body of a script is
a program of its own. The packages are imported inside, so that a program whose package
is not installed can be skipped.
"""

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


def program(package: str, *options: str) -> Callable[[Callable[[], Any]], Any]:
    """Adds a row: a script if its name ends so, else a factory."""

    def add(body: Callable[[], Any]) -> Callable[[], Any]:
        name = body.__name__
        is_script = name.endswith("_script")
        TARGETS[name] = Target(name, package, body, is_script, options)
        return body

    return add


@program("diffusers")
def diffusers_vae_decode() -> Made:
    from diffusers import AutoencoderKL

    vae = AutoencoderKL(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    ).eval()
    return vae.decode, [(torch.randn(n, 4, 8, 8),) for n in (1, 2, 3)]


@program("kornia")
def kornia_augmentation() -> Made:
    import kornia.augmentation as K

    transform = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5),
        K.RandomAffine(degrees=10.0, p=1.0),
        K.ColorJiggle(0.1, 0.1, 0.1, 0.1, p=1.0),
    )
    return transform, [(torch.rand(2, 3, 16, 16),) for _ in range(4)]


@program("vector_quantize_pytorch", "--train")
def vq_train() -> Made:
    from vector_quantize_pytorch import VectorQuantize

    vq = VectorQuantize(
        dim=16, codebook_size=32, decay=0.8, commitment_weight=1.0, kmeans_init=True
    )
    return vq, [(torch.randn(2, 24, 16),) for _ in range(4)]


@program("vector_quantize_pytorch")
def vq_residual() -> Made:
    from vector_quantize_pytorch import ResidualVQ

    vq = ResidualVQ(dim=16, num_quantizers=3, codebook_size=32, quantize_dropout=True)
    return vq.train(), [(torch.randn(2, 24, 16),) for _ in range(4)]


@program("ema_pytorch")
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


@program("e3nn")
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


@program("gpytorch")
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


@program("torch_geometric", "--train")
def pyg_gcn() -> Made:
    from torch_geometric.nn import GCN

    model = GCN(8, 16, num_layers=2, out_channels=3)
    sizes = [(10, 20), (12, 30), (15, 33), (9, 14)]
    calls = [(torch.randn(n, 8), torch.randint(0, n, (2, e))) for n, e in sizes]
    return model, calls


@program("pytorch_optimizer")
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


@program("litgpt")
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


@program("peft")
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


@program("neuralop", "--train")
def neuralop_fno() -> Made:
    from neuralop.models import FNO

    model = FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8)
    return model, [(torch.randn(2, 1, n, n),) for n in (16, 16, 24)]


@program("monai")
def monai_sliding_window() -> Made:
    from monai.inferers import sliding_window_inference
    from monai.networks.nets import UNet

    net = UNet(2, 1, 2, channels=(4, 8), strides=(2,)).eval()

    def infer(image: torch.Tensor) -> torch.Tensor:
        return sliding_window_inference(image, (16, 16), 2, net, overlap=0.25)

    return infer, [(torch.randn(1, 1, n, n),) for n in (32, 32, 40)]


@program("torchdiffeq")
def torchdiffeq_fixed_steps() -> Made:
    from torchdiffeq import odeint

    field = nn.Linear(2, 2)

    def solve(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return odeint(lambda _, y: field(y), x, t, method="rk4")

    return solve, [(torch.randn(4, 2), torch.linspace(0, 1, 4)) for _ in range(3)]


@program("vit_pytorch")
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


@program("st_moe_pytorch", "--train")
def st_moe_train() -> Made:
    from st_moe_pytorch import MoE

    model = MoE(dim=16, num_experts=4, gating_top_n=2)
    return model, [(torch.randn(2, n, 16),) for n in (12, 12, 16)]


@program("zuko", "--train")
def zuko_flow() -> Made:
    import zuko

    class Density(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = zuko.flows.NSF(3, 2, transforms=2, hidden_features=(16, 16))

        def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
            return -self.flow(context).log_prob(x).mean()

    return Density(), [(torch.randn(n, 3), torch.randn(n, 2)) for n in (8, 8, 12)]


@program("pytorch_metric_learning", "--train")
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


@program("lightly", "--train")
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


@program("optimi")
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
