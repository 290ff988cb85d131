"""`TORCH_LOGS` set after `import torch` does nothing.

The variable is read once, on import. A script that sets it in `os.environ` later sees
no log line, and takes the silence for the absence of breaks.

Way round: set it before the program starts, or call `torch._logging.set_logs`.

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

# The way round
del os.environ["TORCH_LOGS"]
torch._logging.set_logs(graph_breaks=True)
assert logging.getLogger(logger).level == logging.DEBUG
