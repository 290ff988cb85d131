import os
import torch

OPTIONS = {"*": {"as_written": True}}


# Scores are kept for telemetry that nobody reads.
DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


class Telemetry:
    def __init__(self):
        self.history = []


def bad():
    f, telemetry = compiled(), Telemetry()

    def driver(x):
        with torch.no_grad():
            scores = f(x)
            telemetry.history.append(scores)  # <- CG304
            return scores.sum()

    return driver, [(x,) for x in inputs()]


# Variables are bound again in each step.
def good():
    f = compiled()

    def driver(xs):
        total = 0.0
        with torch.no_grad():
            for x in xs:
                first = f(x)
                total += float(first.sum())
                second = f(x + 1)
                total += float(second.sum())
        return torch.tensor(total)

    return driver, [(inputs(),)]
