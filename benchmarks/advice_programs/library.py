"""Small scripts around models of transformers, with random weights.

Each cell is a module; nothing is downloaded.
"""

# %% llama_decodes_with_dynamic_cache
import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM


class Decode(nn.Module):
    """One step of generation: the next token, greedily."""

    def __init__(self):
        super().__init__()
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        self.model = LlamaForCausalLM(config).eval()

    def forward(self, ids, cache):
        out = self.model(ids, past_key_values=cache, use_cache=True)
        return out.logits[:, -1].argmax(-1)


def make():
    cache = DynamicCache()
    ids = [torch.randint(0, 64, (1, n)) for n in (5, 1, 1, 1, 1)]
    return Decode().requires_grad_(False), [(each, cache) for each in ids]


# %% llama_generates_in_a_loop
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class Generate(nn.Module):
    def __init__(self, end=2):
        super().__init__()
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
        )
        self.model = LlamaForCausalLM(config).eval()
        self.end = end

    def forward(self, ids, steps):
        for _ in range(steps):
            logits = self.model(ids, use_cache=False).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, token], 1)
            if (token == self.end).all():
                break
        return ids


def make():
    model = Generate().requires_grad_(False)
    return model, [(torch.randint(3, 64, (1, 4)), 3) for _ in range(2)]


# %% bert_padded_batches
import torch
from torch import nn
from transformers import BertConfig, BertModel


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        config = BertConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
        )
        self.bert = BertModel(config).eval()

    def forward(self, ids, mask):
        hidden = self.bert(ids, attention_mask=mask).last_hidden_state
        mask = mask.unsqueeze(-1)
        return (hidden * mask).sum(1) / mask.sum(1)


def make():
    def batch(*lengths):
        mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
        ids = torch.randint(1, 64, mask.shape) * mask
        return ids, mask.long()

    model = Embedder().requires_grad_(False)
    return model, [batch(5, 7), batch(9, 4), batch(6, 6), batch(12, 3)]


# %% lora_around_llama
import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel


class Adapted(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.down = nn.ParameterDict()
        self.up = nn.ParameterDict()
        self.active = None
        self.used = 0

    def add(self, name, rank=2):
        self.down[name] = torch.randn(self.linear.in_features, rank) / 10
        self.up[name] = torch.randn(rank, self.linear.out_features) / 10

    def forward(self, x):
        y = self.linear(x)
        if self.active is None:
            return y
        self.used += 1
        return y + x @ self.down[self.active] @ self.up[self.active]


def make():
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    model = LlamaModel(config).eval()
    for layer in model.layers:
        adapted = Adapted(layer.self_attn.q_proj)
        adapted.add("chat")
        adapted.add("code")
        layer.self_attn.q_proj = adapted
    return model.requires_grad_(False), [(torch.randint(0, 64, (1, 6)),)] * 4


def before_call(fn, index):
    for layer in fn.layers:
        layer.self_attn.q_proj.active = (None, "chat", "code", "chat")[index % 4]


# %% gpt2_scores_with_labels
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


class Perplexity(nn.Module):
    def __init__(self):
        super().__init__()
        config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)
        self.model = GPT2LMHeadModel(config).eval()
        self.total, self.count = 0.0, 0

    def forward(self, ids):
        loss = self.model(ids, labels=ids).loss
        self.total += loss.item() * ids.shape[1]
        self.count += ids.shape[1]
        return loss.exp()


def make():
    model = Perplexity().requires_grad_(False)
    return model, [(torch.randint(0, 64, (1, n)),) for n in (8, 6, 10)]


# %% t5_encodes_and_decodes
import torch
from torch import nn
from transformers import T5Config, T5Model


class Translate(nn.Module):
    def __init__(self):
        super().__init__()
        config = T5Config(
            vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4
        )
        self.t5 = T5Model(config).eval()

    def forward(self, source, target):
        out = self.t5(input_ids=source, decoder_input_ids=target, use_cache=False)
        return out.last_hidden_state[:, -1]


def make():
    def ids(n):
        return torch.randint(0, 64, (1, n))

    model = Translate().requires_grad_(False)
    return model, [(ids(6), ids(n)) for n in (1, 2, 3, 4)]


# %% mixtral_with_router_losses
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        config = MixtralConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
            output_router_logits=True,
        )
        self.model = MixtralForCausalLM(config).eval()

    def forward(self, ids):
        out = self.model(ids, labels=ids, use_cache=False)
        print("balance", out.aux_loss)
        return out.loss


def make():
    model = Sparse().requires_grad_(False)
    return model, [(torch.randint(0, 64, (1, 6)),) for _ in range(2)]


# %% vit_of_several_resolutions
import torch
from torch import nn
from transformers import ViTConfig, ViTModel


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        config = ViTConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        )
        self.vit = ViTModel(config).eval()

    def forward(self, image):
        out = self.vit(image, interpolate_pos_encoding=True)
        return out.last_hidden_state[:, 1:].mean(1)


def make():
    sizes = ((32, 32), (48, 32), (64, 64))
    model = Features().requires_grad_(False)
    return model, [(torch.randn(1, 3, h, w),) for h, w in sizes]


# %% clip_ranks_texts
import torch
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection


class Search(nn.Module):
    def __init__(self):
        super().__init__()
        config = CLIPTextConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            projection_dim=16,
            num_hidden_layers=1,
            num_attention_heads=4,
            bos_token_id=0,
            eos_token_id=63,
        )
        self.text = CLIPTextModelWithProjection(config).eval()
        self.known = {}

    def forward(self, ids, documents):
        key = tuple(ids[0].tolist())
        if key not in self.known:
            self.known[key] = self.text(ids).text_embeds
        return (documents @ self.known[key].T).squeeze(-1).argsort(descending=True)


def make():
    ids = torch.tensor([[0, 5, 6, 63]])
    model = Search().requires_grad_(False)
    return model, [(ids, torch.randn(4, 16)) for _ in range(3)]


# %% bert_mask_sometimes_missing
import torch
from transformers import BertConfig, BertForSequenceClassification


def make():
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
    )
    model = BertForSequenceClassification(config).eval().requires_grad_(False)
    ids = torch.randint(1, 64, (2, 6))
    return model, [(ids, torch.ones(2, 6)), (ids,), (ids, torch.ones(2, 6))]


# %% mistral_static_cache_step
import torch
from torch import nn
from transformers import MistralConfig, MistralForCausalLM, StaticCache


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        config = MistralConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        self.model = MistralForCausalLM(config).eval()
        self.cache = StaticCache(config=config, max_cache_len=16)

    def forward(self, token):
        out = self.model(token, past_key_values=self.cache, use_cache=True)
        return out.logits[:, -1]


def make():
    model = Step().requires_grad_(False)
    return model, [(torch.randint(0, 64, (1, 1)),) for _ in range(4)]


# %% whisper_encoder_with_progress
import logging

import torch
from torch import nn
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

log = logging.getLogger("transcribe")


class Transcribe(nn.Module):
    def __init__(self):
        super().__init__()
        config = WhisperConfig(
            d_model=32,
            encoder_layers=1,
            encoder_attention_heads=4,
            encoder_ffn_dim=48,
            num_mel_bins=8,
            max_source_positions=16,
        )
        self.encoder = WhisperEncoder(config).eval()

    def forward(self, mels):
        hidden = self.encoder(mels).last_hidden_state
        log.info("mean activation %.3f", hidden.mean().item())
        return hidden


def make():
    model = Transcribe().requires_grad_(False)
    return model, [(torch.randn(1, 8, 32),) for _ in range(2)]


# %% all_hidden_states_probed
import torch
from torch import nn
from transformers import GPT2Config, GPT2Model


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        config = GPT2Config(vocab_size=64, n_embd=32, n_layer=3, n_head=4)
        self.gpt = GPT2Model(config).eval()
        self.probes = nn.ModuleList([nn.Linear(32, 2) for _ in range(4)])

    def forward(self, ids):
        states = self.gpt(ids, output_hidden_states=True, use_cache=False).hidden_states
        scores = [probe(s[:, -1]) for probe, s in zip(self.probes, states)]
        best = max(range(len(scores)), key=lambda i: scores[i].max().item())
        return scores[best]


def make():
    model = Probe().requires_grad_(False)
    return model, [(torch.randint(0, 64, (1, 5)),) for _ in range(2)]


# %% mamba_without_kernels
import torch
from transformers import MambaConfig, MambaModel


def make():
    config = MambaConfig(
        vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=1
    )
    model = MambaModel(config).eval().requires_grad_(False)
    return model, [(torch.randint(0, 64, (1, n)),) for n in (4, 6, 5)]
