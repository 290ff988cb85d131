"""`TORCH_LOGS` has no effect if it is set after `import torch`.

torch reads the variable once, on import. A script that sets it in `os.environ` later
sees no log line and may conclude that there are no breaks.

Workaround: set it before the program starts, or call `torch._logging.set_logs`.

Group: diagnosis
"""

import logging
import os

import torch
import torch._dynamo.symbolic_convert

os.environ["TORCH_LOGS"] = "graph_breaks"
logger = "torch._dynamo.symbolic_convert.__graph_breaks"
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
assert logging.getLogger(logger).level == logging.NOTSET

# The workaround
del os.environ["TORCH_LOGS"]
torch._logging.set_logs(graph_breaks=True)
assert logging.getLogger(logger).level == logging.DEBUG
