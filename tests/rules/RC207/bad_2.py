"""Images with and without a batch dimension, and a video with one dimension more."""
import torch


def brightness(image):
    return image.clamp(0, 1).mean((-1, -2))


def make():
    return brightness, [(torch.rand(3, 8, 8),), (torch.rand(2, 3, 8, 8),), (torch.rand(2, 4, 3, 8, 8),)]


EXPECT = [{"code": "RC207", "kind": "recompile", "line": "def brightness(image):", "fix": ["unsqueeze", "dimensions", "rank", "batch dimension"]}]
