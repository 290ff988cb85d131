import torch

OPTIONS = {"*": {"as_written": True}}
WEIGHT = torch.randn(8, 8, requires_grad=True)


# A nested region runs three times in a chain, and a backward follows.
@torch.compiler.nested_compile_region
def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def chain(x, weight):
    for _ in range(3):
        x = norm(x @ weight, weight[0]).sin()  # run: AD103
    return x.sum()


def trained(fn):
    compiled = torch.compile(fn)
    return lambda x: compiled(x, WEIGHT).backward(), [(torch.randn(8, 8),)]


def bad():
    return trained(chain)


# A nested region runs three times in a chain, without gradients.
def good():
    compiled = torch.compile(chain)

    def step(x):
        with torch.no_grad():
            return compiled(x, WEIGHT)

    return step, [(torch.randn(8, 8),)]


# A nested region runs only once, with gradients.
def good_2():
    return trained(lambda x, weight: norm(x @ weight, weight[0]).sin().sum())
