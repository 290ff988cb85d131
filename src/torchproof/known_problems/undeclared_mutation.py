"""A custom operator that changes an undeclared argument is wrong once compiled.

torch trusts `mutates_args=()`: from backend `aot_eager` on, the change is lost. Eager
and backend `eager` show no difference.

Workaround: declare what is changed; `torch.library.opcheck` finds it.

Group: wrong
Code: NM403
"""

import torch


def bump(x: torch.Tensor) -> None:
    x.add_(1)


silent = torch.library.custom_op("limits::silent", bump, mutates_args=())
silent.register_fake(lambda x: None)


def answer(x):
    y = x * 2
    silent(y)
    return y * 3


def make():
    return answer, [(torch.ones(2),)]


assert answer(torch.ones(2)).tolist() == [9, 9]
assert torch.compile(answer, backend="aot_eager")(torch.ones(2)).tolist() == [6, 6]

# The workaround
honest = torch.library.custom_op("limits::honest", bump, mutates_args=("x",))


def declared(x):
    y = x * 2
    honest(y)
    return y * 3


assert torch.compile(declared, backend="aot_eager")(torch.ones(2)).tolist() == [9, 9]
