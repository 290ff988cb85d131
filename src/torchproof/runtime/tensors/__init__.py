"""Tensors of a call: finds, compares, copies and restores them, and the RNG state.

`runtime` and `runtime.cudagraph` use it. Loading this file does not load torch.
"""
