import os
import torch

OPTIONS = {"*": {"as_written": True}}


# Gradients are never reset.
DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def training(count=4):
    net = torch.nn.Linear(8, 1, device=DEVICE)
    step = torch.compile(lambda x: net(x).pow(2).mean(), mode="reduce-overhead")
    return net, step, [torch.randn(4, 8, device=DEVICE) for _ in range(count)]


def bad():
    net, step, xs = training()

    def driver(xs):
        for x in xs:
            loss = step(x)
            loss.backward()  # run: CG302
        return None

    return driver, [(xs,)]


# Gradients are accumulated over two steps each.
def bad_accumulated():
    net, step, xs = training()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def driver(xs):
        for i, x in enumerate(xs):
            (step(x) / 2).backward()  # run: CG302
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()

    return driver, [(xs,)]


# Gradients are dropped before each step.
def good():
    net, step, xs = training()

    def driver(xs):
        for x in xs:
            net.zero_grad(set_to_none=True)
            loss = step(x)
            loss.backward()
        return None

    return driver, [(xs,)]


# Gradients are accumulated in memory of their own.
def good_accumulated():
    net, step, xs = training()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def driver(xs):
        for i, x in enumerate(xs):
            (step(x) / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)

    return driver, [(xs,)]
