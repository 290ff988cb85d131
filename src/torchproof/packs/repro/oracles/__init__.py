"""Oracles: each file recognises one kind of failure. Its source goes into `repro.py`.

An oracle imports only torch and the standard library, and uses only public names of
torch. It may also import from `error_text` and `prelude`: `assembly` puts their source
before the oracle's. Comments and names here are read by whoever opens a repro.
"""
