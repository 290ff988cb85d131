"""Programs that compile with CUDA graphs and keep nothing past its memory."""

import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")
RO = dict(mode="reduce-overhead")


def net():
    return torch.compile(lambda x: (x @ x).relu(), **RO)


def xs(n=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(n)]


def clean_validation():
    m = torch.nn.Sequential(
        torch.nn.Linear(8, 8, device=DEVICE),
        torch.nn.ReLU(),
        torch.nn.Linear(8, 2, device=DEVICE),
    )
    f = torch.compile(m, **RO)
    opt = torch.optim.Adam(m.parameters())

    def driver(data):
        for epoch in range(2):
            m.train()
            for x in data:
                out = f(x)
                loss = torch.nn.functional.mse_loss(out, torch.zeros_like(out))
                opt.zero_grad()
                loss.backward()
                opt.step()
            m.eval()
            correct = 0
            with torch.no_grad():
                for x in data:
                    correct += (f(x).argmax(-1) == 0).sum().item()
        return correct

    return driver, [(xs(3),)]


def clean_inference_mode():
    f = net()

    def driver(data):
        res = []
        with torch.inference_mode():
            for x in data:
                res.append(f(x).cpu().numpy())
        return sum(r.sum() for r in res)

    return driver, [(xs(),)]


def clean_param_return():
    lin = torch.nn.Linear(8, 8, device=DEVICE)
    f = torch.compile(lambda x: (lin(x), lin.weight), **RO)
    kept = []

    def driver(x):
        with torch.no_grad():
            y, w = f(x)
            kept.append(w)
            return y.sum() + kept[0].sum()

    return driver, [(x,) for x in xs()]


def clean_input_return():
    f = torch.compile(lambda x: (x.relu(), x), **RO)
    kept = []

    def driver(x):
        with torch.no_grad():
            y, same = f(x)
            kept.append(same)
            return y.sum() + kept[0].sum()

    return driver, [(x,) for x in xs()]


def clean_ema():
    f = net()

    def driver(data):
        ema = torch.zeros(8, 8, device=DEVICE)
        with torch.no_grad():
            for x in data:
                ema.mul_(0.9).add_(f(x), alpha=0.1)
        return ema.sum()

    return driver, [(xs(),)]


def clean_amp():
    m = torch.nn.Linear(8, 8, device=DEVICE)
    f = torch.compile(m, **RO)
    opt = torch.optim.SGD(m.parameters(), 0.1)

    def driver(data):
        for x in data:
            opt.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = f(x).float().pow(2).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            opt.step()

    return driver, [(xs(),)]


def clean_exception():
    f = net()

    def driver(data):
        n = 0
        with torch.no_grad():
            for x in data:
                try:
                    y = f(x)
                    raise ValueError("x")
                except ValueError as e:
                    err = e
                    n += 1
                z = y.sum()
        return n

    return driver, [(xs(),)]


def clean_graph_break():
    def g(x):
        y = x @ x
        print(end="")
        return (y + 1).relu()

    f = torch.compile(g, **RO)

    def driver(data):
        t = 0.0
        with torch.no_grad():
            for x in data:
                t += f(x).sum().item()
        return t

    return driver, [(xs(),)]


def tiny():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return (
        GPT2LMHeadModel(
            GPT2Config(
                n_layer=2,
                n_head=2,
                n_embd=32,
                vocab_size=100,
                n_positions=64,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
        .eval()
        .to(DEVICE)
    )


def clean_hugging_face_training():
    m = tiny().train()
    f = torch.compile(m, mode="reduce-overhead")
    opt = torch.optim.AdamW(m.parameters())
    losses = []

    def driver(ids):
        out = f(input_ids=ids, labels=ids, use_cache=False)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        losses.append(out.loss.item())

    return driver, [(torch.randint(0, 100, (2, 8), device=DEVICE),) for _ in range(4)]


def clean_static_cache():
    from transformers import StaticCache

    m = tiny()
    f = torch.compile(m, mode="reduce-overhead")

    def driver(ids):
        cache = StaticCache(config=m.config, max_cache_len=16)
        toks = []
        with torch.no_grad():
            pos = torch.arange(ids.shape[1], device=DEVICE)
            out = m(
                input_ids=ids, past_key_values=cache, cache_position=pos, use_cache=True
            )
            tok = out.logits[:, -1:].argmax(-1)
            for i in range(4):
                toks.append(tok.clone())
                out = f(
                    input_ids=tok.clone(),
                    past_key_values=cache,
                    cache_position=torch.tensor([ids.shape[1] + i], device=DEVICE),
                    use_cache=True,
                )
                tok = out.logits[:, -1:].argmax(-1)
        return torch.cat(toks, 1)

    return driver, [(torch.randint(0, 100, (1, 4), device=DEVICE),)]


def growing_cache():
    m = tiny()
    f = torch.compile(m, mode="reduce-overhead", dynamic=True)

    def driver(ids):
        past = None
        toks = [ids[:, -1:]]
        with torch.no_grad():
            for i in range(4):
                out = f(input_ids=toks[-1], past_key_values=past, use_cache=True)
                past = out.past_key_values
                toks.append(out.logits[:, -1:].argmax(-1))
        return torch.cat(toks, 1)

    return driver, [(torch.randint(0, 100, (1, 4), device=DEVICE),)]
