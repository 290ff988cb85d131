"""Settings of torch.compile do not reach other threads.

Since 2.12, `torch._dynamo.config` and `torch._inductor.config` are per thread. A worker
thread compiles with the defaults.

Workaround: run the thread's work in a copy of the context.

Group: diagnosis
Reference: https://github.com/pytorch/pytorch/issues/186537
"""

import contextvars
import threading

import torch
import torch._dynamo

seen = []
torch._dynamo.config.recompile_limit = 64


def work():
    seen.append(torch._dynamo.config.recompile_limit)


thread = threading.Thread(target=work)
thread.start()
thread.join()
assert seen == [8]

# The workaround
thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
thread.start()
thread.join()
assert seen == [8, 64]
