import torch
import torch._inductor.config

torch._inductor.config.cpp.cxx = ("/no/such/compiler",)


# The C++ compiler that Inductor is told to use does not exist.
def model(x):  # run: CE705
    return torch.softmax(x * 2, -1)


def bad():
    return model, [(torch.randn(2, 4),)] * 2
