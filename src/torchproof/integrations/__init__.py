"""Callbacks and metrics for other libraries, one module for each library.

In: a trainer, or a model that serves. Out: the model compiled, its figures in the
library's own log. Start with `compile_metrics.py`; modules named after a library need
it, which is why none is imported here.
Imports `runtime`.
"""

__all__: list[str] = []
