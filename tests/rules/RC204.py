import torch


# Images come in both memory formats.
def stem(image):  # <- RC204
    return image.relu()


def bad():
    formats = [torch.contiguous_format, torch.channels_last] * 2
    return stem, [(torch.randn(2, 3, 8, 8).to(memory_format=each),) for each in formats]


# The caller brings every image into one memory format first.
def good():
    images = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    return stem, [(image.to(memory_format=torch.channels_last),) for image in images]
