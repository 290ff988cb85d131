"""A custom operator that changes an argument silently is wrong once compiled.

`mutates_args=()` is believed: from backend `aot_eager` on, the change is lost. Eager,
and backend `eager`, show nothing of it.

Way round: declare what is changed; `torch.library.opcheck` tells.

Group: wrong
Code: NM403
"""

import torch


def bump(x: torch.Tensor) -> None:
    x.add_(1)


silent = torch.library.custom_op("limits::silent", bump, mutates_args=())
silent.register_fake(lambda x: None)
honest = torch.library.custom_op("limits::honest", bump, mutates_args=("x",))


def answer(x, operator=silent):
    y = x * 2
    operator(y)
    return y


def make():
    return answer, [(torch.ones(2),)]


fast = torch.compile(answer, backend="aot_eager")
assert answer(torch.ones(2)).tolist() == [3, 3]
assert fast(torch.ones(2)).tolist() == [2, 2]

# The way round
assert fast(torch.ones(2), honest).tolist() == [3, 3]
