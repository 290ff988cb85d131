"""Compiled calls written to bytes, and installed from bytes without tracing."""
