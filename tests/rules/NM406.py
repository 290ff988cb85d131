import torch

OPTIONS = {
    "good": {"compile": {"backend": "aot_eager"}},
    "bad_2": {"compile": {"options": {"keep_output_stride": False}}},
}


# Inductor drops a product with ones, and returns the argument itself.
def bad():
    def f(x):  # run: NM406>=2.13,<2.14
        return x * torch.ones(3)

    return f, [(torch.randn(2, 3),)]


# A convolution whose output need not keep eager's strides.
def bad_2():
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(8, 16, 3)

    def f(x):  # run: NM406
        return convolution(x)

    return f, [(torch.randn(2, 8, 16, 16),)]


# Dropout in eager returns its argument in evaluation; compiled code copies it.
def bad_4():
    def f(x):  # run: NM406
        return torch.nn.functional.dropout(x, 0.5, training=False)

    return f, [(torch.randn(2, 3),)]


# A view of the argument is one in eager, too.
def good():
    def f(x):
        return x.view(-1), x.t()

    return f, [(torch.randn(2, 3),)]


# Gradients are the same in every mode, and a second view shares its memory.
def good_3():
    def f(x):
        with torch.no_grad():
            fixed = x.cos()
        y = x.sin()
        return fixed, y, y.view(-1), x.detach()

    return f, [(torch.randn(2, 3, requires_grad=True),)]


# The same values as a copy, and a view of a new tensor.
def good_4():
    def f(x):
        return x.clone(), x.sin().t()

    return f, [(torch.randn(2, 3),)]
