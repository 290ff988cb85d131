"""Words that torch and Python use themselves, so that a program may keep them."""

from __future__ import annotations

_WORDS = """
Model Block Part Data Unit f g h p q a b c d e x y z u v w
training weight bias data grad shape dtype device size dim ndim numel stride item
tolist mean std var sum min max abs sin cos tanh exp log sqrt relu sigmoid softmax
view reshape permute transpose flatten unsqueeze squeeze expand repeat contiguous
clone detach float half bfloat16 long int bool double to cpu cuda type values keys
items append extend pop get update copy index count split join format strip lower
in_features out_features input output inputs outputs args kwargs name names key
value query head heads mask loss logits step steps zero_grad param_groups lr params
train eval parameters buffers modules children register_buffer register_parameter call
register_forward_hook state_dict apply log info warning debug error write read
print close result real imag T mT H requires_grad grad_fn is_leaf layout
setup_context ctx save_for_backward saved_tensors mark_dirty extra_repr
inductor eager aot_eager cudagraphs default reduce-overhead max-autotune
float16 float32 float64 int8 int16 int32 int64 uint8 complex64 complex128
none mean batchmean zeros reflect replicate circular constant bilinear nearest
"""

PLAIN = frozenset(_WORDS.split())
