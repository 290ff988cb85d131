"""repeat_interleave with a tensor of counts and no output_size (speech length regulator)."""
import torch
from torch import nn


class LengthRegulator(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, phonemes, durations):
        phonemes = phonemes.relu()
        frames = phonemes.repeat_interleave(durations, dim=0)
        return self.out(frames)


def make():
    return LengthRegulator(), [(torch.randn(3, 4), torch.tensor([2, 1, 3]))] * 2


EXPECT = [{"code": "GB103", "kind": "graph_break", "line": "phonemes.repeat_interleave(", "fix": ["output_size", "capture_dynamic_output_shape_ops", "mask", "pad"]}]
