"""Graph drafts: a graph that Dynamo captured, as torch code that anyone can run.

`recording` writes them in the process that runs the target, `variants` and `reducing`
change them where torch is not loaded; `sketch` is what they pass to each other.
"""
