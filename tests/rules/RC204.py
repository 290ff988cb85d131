import torch


# Images come in both memory formats.
def stem(image):  # <- RC204
    return image.relu()


def bad():
    formats = [torch.contiguous_format, torch.channels_last] * 2
    return stem, [(torch.randn(2, 3, 8, 8).to(memory_format=each),) for each in formats]


# A transposed view on some calls, and a slice of a larger buffer on another.
def energy(field):  # <- RC204
    return (field * field).sum(-1).sqrt()


def bad_2():
    big = torch.randn(4, 16)
    return energy, [(torch.randn(4, 8),), (torch.randn(8, 4).t(),), (big[:, 3:11],)]


# The caller brings every image into one memory format first.
def good():
    images = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    return stem, [(image.to(memory_format=torch.channels_last),) for image in images]
