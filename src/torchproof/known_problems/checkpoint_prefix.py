"""A compiled module saves its weights under other names.

`torch.compile(model)` wraps the module, and its `state_dict` has the prefix
`_orig_mod.`. With `strict=False`, a plain model accepts such a file and loads nothing
from it.

Workaround: `model.compile()`, which changes no name, or save the inner module.

Group: modules
Reference: https://github.com/pytorch/pytorch/issues/94575
"""

import torch
from torch import nn


class Net(nn.Linear):
    pass


saved = torch.compile(Net(2, 2), backend="eager").state_dict()
assert set(saved) == {"_orig_mod.weight", "_orig_mod.bias"}
result = Net(2, 2).load_state_dict(saved, strict=False)
assert result.missing_keys == ["weight", "bias"]

# The workaround
model = Net(2, 2)
model.compile(backend="eager")
assert set(model.state_dict()) == {"weight", "bias"}
