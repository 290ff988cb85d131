"""The layers that all workloads share, against their formulas."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from torchproof.targets.workloads import layers

DIM, HEADS, LENGTH = 8, 2, 5


def attended(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    """(heads, length, head_dim) each -> (length, dim)."""
    scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
    if causal:
        later = torch.ones(LENGTH, LENGTH).triu(1).bool()
        scores = scores.masked_fill(later, float("-inf"))
    return (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)


def test_attention_is_the_softmax_of_its_heads() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, LENGTH, DIM)
    for causal in (True, False):
        layer = layers.Attention(DIM, HEADS, causal=causal)
        parts = layer.qkv(x)[0].view(LENGTH, HEADS, 3, -1).permute(2, 1, 0, 3)
        assert_close(layer(x)[0], layer.out(attended(*parts, causal=causal)))
    mask = torch.ones(LENGTH, LENGTH).tril().bool()
    assert_close(layer(x, mask)[0], layer.out(attended(*parts, causal=True)))


def test_rotary_attention_shares_keys_between_heads() -> None:
    torch.manual_seed(0)
    layer = layers.RotaryAttention(DIM, HEADS, 1, norm=lambda x: 2 * x)
    x, turn = torch.randn(1, LENGTH, DIM), rotation(torch.arange(LENGTH))
    query = 2 * layers.rotate(layer.query(x)[0].view(LENGTH, HEADS, -1), turn)
    key = 2 * layers.rotate(layer.key(x)[0].view(LENGTH, 1, -1), turn)
    value = layer.value(x)[0].view(LENGTH, 1, -1)
    parts = (each.transpose(0, 1) for each in (query, key, value))
    angles = tuple(part.transpose(0, 1) for part in turn)
    assert_close(layer(x, angles)[0], layer.out(attended(*parts, causal=True)))


def rotation(positions: Tensor) -> layers.Rotation:
    """Cosines and sines (positions, 1, 2) of two frequencies."""
    angles = positions[:, None, None] * torch.tensor([1.0, 0.1])
    return angles.cos(), angles.sin()


def test_rotated_products_depend_on_the_distance_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 4)
    products = [
        layers.rotate(query.view(1, 1, 4), rotation(torch.tensor([first])))
        * layers.rotate(key.view(1, 1, 4), rotation(torch.tensor([first + 3])))
        for first in (0, 7)
    ]
    assert_close(products[0].sum(), products[1].sum())
    assert_close(layers.rotate(query, (torch.ones(2), torch.zeros(2))), query)


class Sum(nn.Module):
    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        return x + more


def test_block_adds_what_its_layers_say_of_normalised_inputs() -> None:
    x, more = torch.randn(2, DIM), torch.randn(2, DIM)
    for kind in (layers.Block, layers.RotaryBlock):
        block = kind(Sum(), nn.ReLU(), lambda: nn.LayerNorm(DIM))
        between = x + block.attention_norm(x) + more
        assert_close(block(x, more), between + block.mlp_norm(between).relu())


def test_patches_are_those_of_a_convolution() -> None:
    torch.manual_seed(0)
    model = layers.VisionTransformer(layers.Vision(DIM, 16, 1, HEADS, image=8, patch=4))
    images = torch.randn(2, 3, 8, 8)
    weight = model.embedding.weight.view(DIM, 3, 4, 4)
    expected = F.conv2d(images, weight, model.embedding.bias, stride=4)
    patches = model.embedding(model.pixels(images))
    assert_close(patches, expected.flatten(2).transpose(1, 2))
