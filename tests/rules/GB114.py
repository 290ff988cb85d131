import torch

# An operator registered for CPU only, without and with a fake kernel.
if not hasattr(torch.ops.rules_gb114, "gelu"):
    library = torch.library.Library("rules_gb114", "DEF")
    for name in ("gelu", "gelu_with_fake"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x * torch.sigmoid(1.702 * x), "CPU")
    torch.library.register_fake("rules_gb114::gelu_with_fake", torch.empty_like, lib=library)


def feed_forward(x):
    h = x * 2
    h = torch.ops.rules_gb114.gelu(h)  # run: GB114
    return h + 1


def bad():
    return feed_forward, [(torch.randn(2, 4),)] * 3


def feed_forward_with_fake(x):
    return torch.ops.rules_gb114.gelu_with_fake(x * 2) + 1


def good():
    return feed_forward_with_fake, [(torch.randn(2, 4),)] * 3
