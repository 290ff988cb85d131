"""Callbacks for other libraries, one module for each library.

In: a trainer. Out: its model compiled, with the figures in the trainer's own log.
Start with `compile_metrics.py`; each other module needs the library that it is named
after, which is why none is imported here.
Imports `runtime`.
"""

__all__: list[str] = []
