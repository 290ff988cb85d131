"""A reader of patches that tries one layout, then another: an error of Dynamo."""

import torch
from torch import nn


class PatchReader(nn.Module):
    """Cuts scans of two scanners into patches: the newer one pads its rows."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.project = nn.Linear(patch * patch, width)

    def patches_of(self, scan: torch.Tensor) -> torch.Tensor:
        count = scan.shape[0]
        try:
            cut = scan.view(count, 5, self.patch, 5, self.patch)
        except RuntimeError:
            # Scans of the older machine have four patches a side.
            cut = scan.view(count, 4, self.patch, 4, self.patch)
        return cut.transpose(2, 3).flatten(3).flatten(1, 2)

    def forward(self, scan: torch.Tensor) -> torch.Tensor:
        return self.project(self.patches_of(scan))


class ScanTransformer(nn.Module):
    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.reader = PatchReader(4, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 64, batch_first=True, dropout=0.0)
            for _ in range(layers)
        )
        self.finding = nn.Linear(width, 5)

    def forward(self, scan: torch.Tensor) -> torch.Tensor:
        scan = (scan - scan.mean()) / (scan.std() + 1e-5)
        tokens = self.reader(scan)
        for block in self.blocks:
            tokens = block(tokens)
        return self.finding(tokens.mean(dim=1))


def make():
    return ScanTransformer(), [(torch.randn(2, 16, 16),)]
