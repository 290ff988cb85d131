import os
import torch

OPTIONS = {"*": {"as_written": True}}


# A step is marked between a forward and its backward.
DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def training(count=4):
    net = torch.nn.Linear(8, 1, device=DEVICE)
    step = torch.compile(lambda x: net(x).pow(2).mean(), mode="reduce-overhead")
    return net, step, [torch.randn(4, 8, device=DEVICE) for _ in range(count)]


def bad():
    net, step, xs = training()

    def driver(xs):
        for x in xs:
            net.zero_grad(set_to_none=True)
            loss = step(x)
            torch.compiler.cudagraph_mark_step_begin()  # <- CG303
            loss.backward()

    return driver, [(xs,)]


# A step is marked before its forward.
def good():
    net, step, xs = training()

    def driver(xs):
        for x in xs:
            net.zero_grad(set_to_none=True)
            torch.compiler.cudagraph_mark_step_begin()
            loss = step(x)
            loss.backward()

    return driver, [(xs,)]
