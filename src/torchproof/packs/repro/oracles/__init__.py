"""How each failure is recognised: the source of one file is a part of every repro.

A judge needs torch alone, and its public names only. `words` and `prelude` stand before
it in a repro, so what they define may be imported from there and from nowhere else.
"""
