import os
import torch

OPTIONS = {"*": {"as_written": True}}
DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def training(driver):
    net = torch.nn.Linear(8, 1, device=DEVICE)
    step = torch.compile(lambda x: net(x).pow(2).mean(), mode="reduce-overhead")
    xs = [torch.randn(4, 8, device=DEVICE) for _ in range(4)]
    return lambda xs: driver(net, step, xs), [(xs,)]


# A step is marked between a forward and its backward.
def marked_between(net, step, xs):
    for x in xs:
        net.zero_grad(set_to_none=True)
        loss = step(x)
        torch.compiler.cudagraph_mark_step_begin()  # run: CG303
        loss.backward()


def bad():
    return training(marked_between)


# A step is marked before its forward.
def marked_before(net, step, xs):
    for x in xs:
        net.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()
        step(x).backward()


def good():
    return training(marked_before)
