import os
import torch

OPTIONS = {
    "*": {"as_written": True},
    "bad_state": {"compile": {"mode": "reduce-overhead"}},
}


# Outputs of earlier calls are kept in a list and stacked.
DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


def bad():
    f = compiled()

    def driver(xs):
        outs = []
        with torch.no_grad():
            for x in xs:
                outs.append(f(x))  # <- CG301
            return torch.stack(outs).sum()

    return driver, [(inputs(),)]


# A policy keeps the scores of one call and reads them after the next.
class Variant:
    def __init__(self, net):
        self.net = net
        self.policy_scores = None

    def score(self, x):
        self.policy_scores = self.net(x)  # run: CG301


def bad_attribute():
    variant = Variant(compiled())

    def driver(xs):
        total = 0.0
        with torch.no_grad():
            for x in xs:
                variant.score(x)
                variant.net(x + 1)
                total += float(variant.policy_scores.mean())
        return torch.tensor(total)

    return driver, [(inputs(),)]


# The best output so far is kept in a variable of an outer function.
def tracker():
    best = None

    def update(scores):
        nonlocal best
        if best is None or scores.mean() > best.mean():
            best = scores
        return best

    return update


def bad_closure():
    f, update = compiled(), tracker()

    def driver(x):
        with torch.no_grad():
            scores = f(x)  # run: CG301
            return update(scores).sum()

    return driver, [(x,) for x in inputs()]


# A generator hands out outputs, and its caller collects them.
def outputs(f, xs):
    for x in xs:
        yield f(x)


def bad_generator():
    f = compiled()

    def driver(xs):
        with torch.no_grad():
            first, *others = outputs(f, xs)  # run: CG301
            return first + others[0]

    return driver, [(inputs(),)]


# In marked steps, an output of one step is read in the next.
def bad_marked():
    f = compiled()

    def driver(xs):
        total, last = 0.0, None
        with torch.no_grad():
            for x in xs:
                torch.compiler.cudagraph_mark_step_begin()
                fresh = f(x)
                if last is not None:
                    total = total + (fresh - last).abs().sum()
                last = fresh  # run: CG301
        return total

    return driver, [(inputs(),)]


# A module keeps an output of its own forward for its next call.
class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8, device=DEVICE)
        self.state = torch.zeros(8, 8, device=DEVICE)

    def forward(self, x):
        y = torch.tanh(self.fc(x) + self.state)
        self.state = y.detach()  # read: CG304 # run: CG301
        return y.mean()


def bad_state():
    model = Memory().requires_grad_(False)
    return model, [(x,) for x in inputs()]


# A row of each output is kept, which shares its memory.
def bad_view():
    f = compiled()

    def driver(xs):
        rows = {}
        with torch.no_grad():
            for i, x in enumerate(xs):
                rows[i] = f(x)[0]  # <- CG301
            return sum(row.sum() for row in rows.values())

    return driver, [(inputs(),)]


# A copy of each output is kept.
def good():
    f = compiled()

    def driver(xs):
        outs = []
        with torch.no_grad():
            for x in xs:
                outs.append(f(x).clone())
            return torch.stack(outs).sum()

    return driver, [(inputs(),)]


# What is kept lies on the host, in each of the ways to get it there.
def good_host():
    f = torch.compile(lambda x: x.sin() + 1, mode="reduce-overhead")

    def driver(xs):
        kept = []
        with torch.inference_mode():
            for x in xs:
                out = f(x)
                kept += [out.cpu().numpy(), out.to("cpu").numpy(), out.tolist()]
                kept += [out.detach().to(device="cpu").numpy(), out.sum().item()]
        return float(sum(sum(each) for each in kept if not isinstance(each, float)))

    return driver, [([torch.full((8,), i + 1.0, device=DEVICE) for i in range(4)],)]


# Two calls in one marked step may be read together.
def good_marked():
    f = compiled()

    def driver(xs):
        total = torch.zeros((), device=DEVICE)
        with torch.no_grad():
            for x in xs:
                torch.compiler.cudagraph_mark_step_begin()
                pair = [f(x), f(x + 1)]
                total += torch.stack(pair).sum()
        return total

    return driver, [(inputs(),)]
