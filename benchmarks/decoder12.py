"""A 12-layer decoder and six calls, the last two of another length: one recompile."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS, DIM, HEADS, VOCABULARY, CONTEXT = 12, 256, 8, 1024, 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.mlp_norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        # (batch, sequence, 3 * dim) -> 3 x (batch, heads, sequence, dim / heads)
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, DIM // HEADS))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, DIM)
        self.positions = nn.Embedding(CONTEXT, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make() -> tuple[Decoder, list[tuple[Tensor]]]:
    lengths = [64, 64, 64, 64, 96, 96]
    calls = [(torch.randint(VOCABULARY, (4, length)),) for length in lengths]
    return Decoder().eval(), calls
