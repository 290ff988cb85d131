import torch


# Outputs of CUDA graphs are kept over later calls.
step = torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


@torch.no_grad()
def listed(batches):
    outs = []
    for batch in batches:
        outs.append(step(batch))  # <- CG301
    return torch.stack(outs)


def fed_back(state):
    with torch.inference_mode():
        for _ in range(5):
            state = step(state)  # <- CG301
    return state


def losses(net, batches):
    fast = torch.compile(lambda x: net(x).mean(), mode="reduce-overhead")
    kept = []
    for batch in batches:
        loss = fast(batch)
        loss.backward()
        kept.append(loss.detach())  # <- CG301
    return torch.stack(kept).mean()


class Policy:
    def __init__(self, net):
        self.net = torch.compile(net, mode="reduce-overhead")
        self.scores = None

    @torch.no_grad()
    def act(self, x):
        self.scores = self.net(x)  # <- CG301
        return self.scores.argmax()


@torch.no_grad()
def gathered(batches):
    return [step(batch) for batch in batches]  # <- CG301


# Copies are kept, or values that are no memory of a graph.
plain = torch.compile(lambda x: x.relu())


@torch.no_grad()
def copied(batches):
    outs, sums = [], []
    for batch in batches:
        out = step(batch)
        outs.append(out.clone())
        sums.append(out.sum().item())
        local = []
        local.append(out)
    return torch.stack(outs), sums


@torch.no_grad()
def without_graphs(batches, state):
    outs = []
    for batch in batches:
        outs.append(plain(batch))
        state = plain(state)
    return outs, state


def copied_back(state):
    with torch.inference_mode():
        for _ in range(5):
            state = step(state).clone()
    return state


def one_step(batches):
    outs = []
    for batch in batches:
        outs.append(step(batch))  # one backward is due for all of them
    torch.stack(outs).sum().backward()


@torch.no_grad()
def into_a_tensor(batches):
    rows = torch.empty(len(batches), 8, 8)
    for index, batch in enumerate(batches):
        rows[index] = step(batch)
    return rows
