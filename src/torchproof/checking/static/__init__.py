"""Source code as values: parsed files, names, calls, and the kinds of what they hold.

Knows torch.compile and no rule: the rules ask it about the code they look at.
"""
