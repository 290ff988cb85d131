"""`torch.compile` of a module returns another object, of another class.

It holds the model as `_orig_mod`. `isinstance` and other checks of the class fail.

Workaround: `model.compile()`, which compiles in place.

Group: modules
"""

import torch
from torch import nn


class Net(nn.Linear):
    pass


assert not isinstance(torch.compile(Net(2, 2), backend="eager"), Net)

# The workaround
model = Net(2, 2)
model.compile(backend="eager")
assert isinstance(model, Net)
