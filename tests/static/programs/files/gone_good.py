"""What took their place."""

import torch
from torch.nn.utils.rnn import pad_sequence


def autocast():
    return torch.amp.autocast("cpu")


def scaler():
    return torch.amp.GradScaler("cpu")


def unbacked(x):
    torch._dynamo.decorators.mark_unbacked(x, 0)


def padded(rows):
    return pad_sequence(rows, batch_first=True, padding_value=0.0)


def explained(function, x):
    return torch._dynamo.explain(function)(x)


def mode(function, chosen=None):
    return torch.compile(function, mode=chosen, options=None if chosen else {})


def either():
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cpu")
    return torch.cuda.amp.GradScaler()


def exported(model, x):
    return torch.export.export(model, (x,))
