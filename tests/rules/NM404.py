import torch


# Dropout under Inductor: another random stream, which is no more than that.
def bad():  # <- NM404
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5))
    return net, [(torch.randn(8, 16),)]
