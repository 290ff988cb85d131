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


# One of two losses has its backward only after the next forward.
def bad_delayed():
    net, step, xs = training()

    def driver(xs):
        first, second = step(xs[0]), step(xs[1])
        second.backward()
        net.zero_grad(set_to_none=True)
        third = step(xs[2])  # <- CG303
        first.backward()
        net.zero_grad(set_to_none=True)
        third.backward()
        net.zero_grad(set_to_none=True)

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


# Two losses have their backwards before the next forward.
def good_delayed():
    net, step, xs = training()

    def driver(xs):
        for a, b in zip(xs[::2], xs[1::2], strict=True):
            first, second = step(a), step(b)
            (first + second).backward()
            net.zero_grad(set_to_none=True)

    return driver, [(xs,)]
