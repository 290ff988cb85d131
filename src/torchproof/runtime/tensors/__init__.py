"""What a call is made of and can change: tensors found, compared, copied, put back.

`runtime` and `replay` both stand on it. Loading this file does not load torch.
"""
