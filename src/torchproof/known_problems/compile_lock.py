"""A compilation that hangs in one thread blocks every other one in the process.

Compiling takes a process-wide lock. Code that is already compiled still runs.

Workaround: a stance that compiles nothing for the other threads; a separate process for
what may hang; `torchproof.compile`, which gives up after a deadline.

Group: lazy
"""

import threading

import torch

begun, release, done = threading.Event(), threading.Event(), threading.Event()
known = torch.compile(lambda x: x - 1, backend="eager")
known(torch.ones(2))


def hanging(graph, example_inputs):
    begun.set()
    release.wait(60)
    return graph


def other():
    torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2))
    done.set()


first = torch.compile(lambda x: x + 1, backend=hanging)
threads = [threading.Thread(target=first, args=(torch.ones(2),))]
threads[0].start()
begun.wait(60)
threads.append(threading.Thread(target=other))
threads[1].start()
assert not done.wait(1)

# The workaround
with torch.compiler.set_stance("force_eager"):
    answer = torch.compile(lambda x: x * 3, backend="eager")(torch.ones(2))
assert answer.tolist() == [3, 3] and known(torch.ones(2)).tolist() == [0, 0]
assert not done.is_set()
release.set()
for thread in threads:
    thread.join()
