"""A module that `torch.compile` returned is another object, of another class.

It holds the model as `_orig_mod`. `isinstance` fails, and so does what asks for the
class.

Way round: `model.compile()`, which compiles in place.

Group: modules
"""

import torch
from torch import nn


class Net(nn.Linear):
    pass


assert not isinstance(torch.compile(Net(2, 2), backend="eager"), Net)

# The way round
model = Net(2, 2)
model.compile(backend="eager")
assert isinstance(model, Net)
