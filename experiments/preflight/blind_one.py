"""Mistakes people make when they train transformers, listed without knowledge of what the check looks at.

The author had read only the README of this folder. See there for the form of a case and of its truth.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

V, T, B, D = 48, 16, 16, 32


# ---------------------------------------------------------------- data


def gen(seed):
    return torch.Generator().manual_seed(seed)


def walk(n, t, seed, vocab=V):
    """Return token sequences in which the next token mostly follows from the current one (0 is padding, 1 special)."""
    g = gen(seed)
    x = torch.randint(2, vocab, (n, t), generator=g)
    keep = torch.rand(n, t, generator=g) < 0.85
    for i in range(1, t):
        x[:, i] = torch.where(keep[:, i], 2 + (x[:, i - 1] * 5 + 3) % (vocab - 2), x[:, i])
    return x


def pairs(count=8, n=B, t=T):
    rows = [walk(n, t + 1, 100 + s) for s in range(count)]
    return [(r[:, :-1].contiguous(), r[:, 1:].contiguous()) for r in rows]


def padded(count=8, n=B, t=T):
    """Return (ids, real) with random lengths, padding on the right."""
    out = []
    for s in range(count):
        ids = walk(n, t, 200 + s)
        length = torch.randint(4, t + 1, (n,), generator=gen(300 + s))
        real = torch.arange(t)[None] < length[:, None]
        out.append((ids * real, real))
    return out


def topics(count=8, n=B, t=T, classes=4):
    """Return (ids, real, label): the label is which marker (2..5) occurs somewhere in the real part."""
    out = []
    for s, (ids, real) in enumerate(padded(count, n, t)):
        g = gen(400 + s)
        label = torch.randint(0, classes, (n,), generator=g)
        ids = torch.where(real, 6 + ids % (V - 6), 0)
        spot = (torch.rand(n, generator=g) * real.sum(1)).long()
        ids[torch.arange(n), spot] = 2 + label
        out.append((ids, real, label))
    return out


def pictures(count=8, n=B, classes=4):
    """Return (pixels, label), 3 x 16 x 16: the bright quadrant is the label."""
    out = []
    for s in range(count):
        g = gen(500 + s)
        y = torch.randint(0, classes, (n,), generator=g)
        x = torch.randn(n, 3, 16, 16, generator=g)
        for i, c in enumerate(y.tolist()):
            r, k = 8 * (c // 2), 8 * (c % 2)
            x[i, :, r : r + 8, k : k + 8] += 1.0
        out.append((x, y))
    return out


def series(count=8, n=B, t=12):
    """Return (signal, target): a real-valued target of mean 0 and deviation about 1."""
    out = []
    for s in range(count):
        x = torch.randn(n, t, 4, generator=gen(600 + s))
        out.append((x, x[..., 0].mean(1) * math.sqrt(t) * 0.8 + x[:, -1, 1] * 0.6))
    return out


def translations(count=8, n=B, t=8):
    """Return (source, target with a start token in front): the target is the source reversed."""
    out = []
    for s in range(count):
        src = walk(n, t, 700 + s)
        out.append((src, torch.cat([torch.ones(n, 1, dtype=torch.long), src.flip(1)], 1)))
    return out


# ---------------------------------------------------------------- models


def causal(q, k, v):
    t = q.size(-2)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(torch.ones(t, t).tril() == 0, float("-inf"))
    return scores.softmax(-1) @ v


def split_heads(x, heads):
    b, t, d = x.shape
    return x.view(b, t, heads, d // heads).transpose(1, 2)


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, mix=causal, split=split_heads):
        super().__init__()
        self.heads, self.mix, self.split = heads, mix, split
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (self.split(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        y = self.mix(q, k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


def feed_forward(dim):
    return nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))


def pre_norm(block, x):
    x = x + block.attn(block.ln1(x))
    return x + block.mlp(block.ln2(x))


def post_norm(block, x):
    x = block.ln1(x + block.attn(x))
    return block.ln2(x + block.mlp(x))


class Block(nn.Module):
    def __init__(self, dim, heads, wiring=pre_norm, mlp=feed_forward, norm=nn.LayerNorm, **attention):
        super().__init__()
        self.wiring = wiring
        self.ln1, self.ln2 = norm(dim), norm(dim)
        self.attn = SelfAttention(dim, heads, **attention)
        self.mlp = mlp(dim)

    def forward(self, x):
        return self.wiring(self, x)


def by_index(x):
    return torch.arange(x.size(1))


def gpt_init(module):
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class GPT(nn.Module):
    def __init__(
        self, depth=2, dim=D, heads=4, norm=nn.LayerNorm, places=by_index, init=gpt_init, tie=False, **block
    ):
        super().__init__()
        self.places = places
        self.tok_emb = nn.Embedding(V, dim)
        self.pos_emb = nn.Embedding(64, dim) if places else None
        self.blocks = nn.ModuleList([Block(dim, heads, norm=norm, **block) for _ in range(depth)])
        self.ln_f = norm(dim)
        self.head = nn.Linear(dim, V, bias=False)
        if init:
            self.apply(init)
        if tie:
            self.head.weight = self.tok_emb.weight

    def forward(self, ids):
        x = self.tok_emb(ids)
        if self.places:
            x = x + self.pos_emb(self.places(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class TextClassifier(nn.Module):
    """nn.TransformerEncoder over tokens, mean of the real positions, linear readout."""

    def __init__(
        self, classes=4, dropout=0.1, batch_first=True, padding=lambda real: ~real, pad_id=None, pool=None
    ):
        super().__init__()
        self.embedding = nn.Embedding(V, D, padding_idx=pad_id)
        self.position = nn.Parameter(torch.randn(64, D) * 0.1)
        layer = nn.TransformerEncoderLayer(D, 4, 64, dropout, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(D, classes)
        self.padding, self.pool = padding, pool

    def forward(self, ids, real):
        x = self.embedding(ids) + self.position[: ids.size(1)]
        x = self.encoder(x, src_key_padding_mask=self.padding(real) if self.padding else None)
        if self.pool:
            return self.fc(self.pool(x, real))
        w = real.unsqueeze(-1).float()
        return self.fc((x * w).sum(1) / w.sum(1))


class TinyViT(nn.Module):
    def __init__(self, classes=4, drop=nn.Identity, activation=nn.Identity):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, D, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, D))
        self.pos = nn.Parameter(torch.randn(1, 17, D) * 0.02)
        self.drop = drop()
        free = F.scaled_dot_product_attention
        self.layers = nn.Sequential(*[Block(D, 4, mix=free) for _ in range(2)])
        self.norm = nn.LayerNorm(D)
        self.classifier = nn.Linear(D, classes)
        self.activation = activation()

    def features(self, img):
        x = self.patch_embed(img).flatten(2).transpose(1, 2)
        x = self.drop(torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos)
        return self.norm(self.layers(x))[:, 0]

    def forward(self, img):
        return self.activation(self.classifier(self.features(img)))


class Forecaster(nn.Module):
    """Post-norm encoder over a real-valued series."""

    def __init__(self, final=nn.Identity, squeeze=True):
        super().__init__()
        self.proj = nn.Linear(4, D)
        self.pe = nn.Parameter(torch.randn(12, D) * 0.1)
        free = F.scaled_dot_product_attention
        self.stack = nn.ModuleList([Block(D, 2, wiring=post_norm, mix=free) for _ in range(2)])
        self.regressor = nn.Sequential(nn.Linear(D, 1), final())
        self.squeeze = squeeze

    def forward(self, x):
        x = self.proj(x) + self.pe
        for layer in self.stack:
            x = layer(x)
        y = self.regressor(x.mean(1))
        return y.squeeze(-1) if self.squeeze else y


class DecoderLayer(nn.Module):
    def __init__(self, dim, look):
        super().__init__()
        self.look = look
        self.self_attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.n1, self.n2, self.n3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = feed_forward(dim)

    def forward(self, x, memory):
        mask = torch.ones(x.size(1), x.size(1)).triu(1).bool()
        h = self.n1(x)
        x = x + self.self_attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        h = self.n2(x)
        seen = self.look(h, memory)
        x = x + self.cross_attn(h, seen, seen, need_weights=False)[0]
        return x + self.ff(self.n3(x))


class Translator(nn.Module):
    def __init__(self, look=lambda h, memory: memory):
        super().__init__()
        self.src_emb, self.tgt_emb = nn.Embedding(V, D), nn.Embedding(V, D)
        self.where = nn.Parameter(torch.randn(32, D) * 0.3)
        layer = nn.TransformerEncoderLayer(D, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(D), enable_nested_tensor=False)
        self.decoder = nn.ModuleList([DecoderLayer(D, look) for _ in range(2)])
        self.generator = nn.Linear(D, V)

    def forward(self, src, tgt):
        memory = self.encoder(self.src_emb(src) + self.where[: src.size(1)])
        x = self.tgt_emb(tgt) + self.where[: tgt.size(1)]
        for layer in self.decoder:
            x = layer(x, memory)
        return self.generator(x)


def hf_gpt2(**change):
    from transformers import GPT2Config, GPT2LMHeadModel

    small = dict(vocab_size=V, n_positions=64, n_embd=D, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1)
    return GPT2LMHeadModel(GPT2Config(**(small | change)))


def hf_bert(kind="BertForMaskedLM", **change):
    import transformers

    small = dict(
        vocab_size=V, hidden_size=D, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    small |= dict(max_position_embeddings=64, pad_token_id=0)
    return getattr(transformers, kind)(transformers.BertConfig(**(small | change)))


def hf_llama(**change):
    from transformers import LlamaConfig, LlamaForCausalLM

    small = dict(
        vocab_size=V, hidden_size=D, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    small |= dict(num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=1)
    return LlamaForCausalLM(LlamaConfig(**(small | change)))


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, both_zero=False):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        if both_zero:
            nn.init.zeros_(self.lora_A)

    def forward(self, x):
        return self.base(x) + 2.0 * (x @ self.lora_A.T @ self.lora_B.T)


def add_lora(model, **kw):
    for p in model.parameters():
        p.requires_grad = False
    for block in model.blocks:
        block.attn.qkv = LoRALinear(block.attn.qkv, **kw)
        block.mlp[0] = LoRALinear(block.mlp[0], **kw)
    return model


class MoE(nn.Module):
    """Switch feed-forward: every token goes to its best expert."""

    def __init__(self, dim, weigh=True, k=1):
        super().__init__()
        self.router = nn.Linear(dim, 4, bias=False)
        self.experts = nn.ModuleList([feed_forward(dim) for _ in range(4)])
        self.weigh, self.k, self.balance = weigh, k, 0.0

    def forward(self, x):
        p = self.router(x).softmax(-1)
        top, who = p.topk(self.k, -1)
        y = torch.zeros_like(x)
        for slot in range(self.k):
            for e, expert in enumerate(self.experts):
                chosen = (who[..., slot] == e).unsqueeze(-1)
                y = y + chosen * expert(x) * (top[..., slot : slot + 1] if self.weigh else 1.0)
        share = F.one_hot(who[..., 0], 4).float().mean((0, 1))
        self.balance = 4 * (share * p.mean((0, 1))).sum()
        return y


# ---------------------------------------------------------------- losses, loops


def lm_loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def topic_loss(model, batch):
    ids, real, y = batch
    return F.cross_entropy(model(ids, real), y)


def image_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def mse_loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def adamw(model, lr=1e-3, **kw):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, **kw)


def pretrained(model, batches, loss, epochs=2):
    opt = adamw(model, 3e-3)
    for batch in batches * epochs:
        opt.zero_grad()
        loss(model, batch).backward()
        opt.step()
    opt.zero_grad()
    return model


def case(model, batches, loss=None, truth=None, optimizer=None, **more):
    out = dict(model=model, batches=batches, optimizer=optimizer or adamw(model), **more)
    if loss is not None:
        out["loss"] = loss
    if truth is not None:
        words, places, *rest = truth
        out["truth"] = dict(words=words, places=places, consequences=rest[0] if rest else [])
    return out


def gpt_case(truth, seed=0, **kw):
    torch.manual_seed(seed)
    return case(GPT(**kw), pairs(), lm_loss, truth)


def say(text):
    """Return the truth's alternatives, written with | between them and + between words that must all occur."""
    return [[word.strip() for word in part.split("+")] for part in text.split("|")]


LEAK = say("causal | future | leak | sees+label | look+ahead | sees+target | later+position")
NO_GRAD = say("no+gradient | never+train | not+train | zero+gradient | gradient+none")
EXPLODE = say("loss+init | loss+start | saturat | large | diverge | explod | gradient+norm")
SLOW = say("update+small | loss+not+fall | does not+change | no+progress | not+move")


# ---------------------------------------------------------------- attention and masks


def case_tril_off_by_one(broken):
    def mix(q, k, v):
        t = q.size(-2)
        keep = torch.tril(torch.ones(t, t), diagonal=1 if broken else 0).bool()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)

    return gpt_case((LEAK, ["blocks", "model", "labels", "data", "loss"]), mix=mix)


def case_mask_fill_zero(broken):
    def mix(q, k, v):
        t = q.size(-2)
        att = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5
        att = att.masked_fill(torch.tril(torch.ones(t, t)) == 0, 0.0 if broken else float("-inf"))
        return F.softmax(att, dim=-1) @ v

    return gpt_case((LEAK, ["blocks", "model", "labels", "data", "loss"]), mix=mix)


def case_softmax_over_queries(broken):
    def mix(q, k, v):
        t = q.size(-2)
        att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        att = att.masked_fill(torch.ones(t, t).triu(1).bool(), -1e9)
        return torch.softmax(att, dim=-2 if broken else -1) @ v

    words = LEAK + say("softmax+dim | softmax+axis | rows+sum | attention+sum | query")
    return gpt_case((words, ["blocks", "model", "labels", "data", "loss"]), mix=mix)


def case_scale_multiplied(broken):
    def init(m):
        gpt_init(m)
        if isinstance(m, SelfAttention):
            nn.init.xavier_uniform_(m.qkv.weight)

    def mix(q, k, v):
        root = math.sqrt(q.size(-1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=root if broken else 1 / root)

    words = say("attention+saturat | attention+sharp | attention+one+key | scale | entropy")
    words += say("attention+logit | score+large")
    return gpt_case((words, ["blocks", "model"], EXPLODE), mix=mix, init=init, dim=64, heads=2)


def case_heads_view_without_transpose(broken):
    def split(x, heads):
        b, t, d = x.shape
        return x.reshape(b, heads, t, d // heads) if broken else split_heads(x, heads)

    words = LEAK + say("head+reshape | head+view | head+transpose | mix+position | scrambl")
    return gpt_case((words, ["blocks", "model", "labels", "data", "loss"]), split=split)


def case_key_padding_mask_inverted(broken):
    torch.manual_seed(1)
    model = TextClassifier(padding=lambda real: real if broken else ~real)
    words = say("padding+mask | mask+invert | attend+pad | padding+attention | nan | ignore+real")
    # sequences that fill the batch's width would give NaN, the other symptom: here every row has a padded end
    rows = [(F.pad(i, (0, 2)), F.pad(r, (0, 2)), y) for i, r, y in topics()]
    return case(model, rows, topic_loss, (words, ["encoder", "model", "data"], SLOW))


def case_forgot_batch_first(broken):
    torch.manual_seed(1)
    model = TextClassifier(batch_first=not broken, padding=None)
    filler = torch.randint(6, V, (B, T), generator=gen(1))
    rows = [(torch.where(r, i, filler), torch.ones_like(r), y) for i, r, y in topics()]
    words = say("batch_first | across+batch | across+example | other+example | other+row")
    words += say("mix+example | batch+dimension | depends+batch | sequences+batch | mix+batch")
    return case(model, rows, topic_loss, (words, ["encoder", "model"], SLOW))


def case_first_row_fully_masked(broken):
    def mix(q, k, v):
        t = q.size(-2)
        s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        s = s.masked_fill(torch.tril(torch.ones(t, t), -1 if broken else 0) == 0, -math.inf)
        return s.softmax(-1) @ v

    words = say("nan | finite | mask+row | fully+mask | every+key | all+mask")
    return gpt_case((words, ["blocks", "model", "loss", "step"]), mix=mix)


# ---------------------------------------------------------------- positions


def case_positions_from_batch_axis(broken):
    def places(ids):
        return torch.arange(ids.size(0))[:, None] if broken else torch.arange(ids.size(1))

    words = say("position | across+batch | order+row | depends+batch | row+batch | batch+order")
    return gpt_case((words, ["pos_emb", "model", "data", "blocks"]), places=places)


def case_rotary_on_queries_only(broken):
    def rotate(x):
        half = x.size(-1) // 2
        angle = torch.arange(x.size(-2))[:, None] * 10000 ** (-torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def mix(q, k, v):
        return F.scaled_dot_product_attention(rotate(q), k if broken else rotate(k), v, is_causal=True)

    words = say("rotary | rope | relative+position | position+key | position+shift | absolute+position")
    return gpt_case((words, ["blocks", "model"]), mix=mix, places=None)


def case_alibi_sign(broken):
    def mix(q, k, v):
        t, h = q.size(-2), q.size(1)
        gap = (torch.arange(t)[:, None] - torch.arange(t)[None]).float()
        slope = 2.0 ** -torch.arange(1, h + 1)[:, None, None]
        bias = (slope if broken else -slope) * gap
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(gap < 0, -math.inf))

    words = say("alibi | bias+distance | bias+sign | attend+far | distant | first+position")
    return gpt_case((words, ["blocks", "model"]), mix=mix, places=None)


# ---------------------------------------------------------------- norms, residuals, blocks, initialization


class RMS(nn.Module):
    def __init__(self, dim, total=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.total = total

    def forward(self, x):
        power = x.pow(2).sum(-1, keepdim=True) if self.total else x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(power + 1e-6) * self.weight


def case_rmsnorm_sum_for_mean(broken):
    words = say("norm+scale | norm+output | rms | norm+size | norm+small | norm+unit")
    where = ["blocks.0.ln", "blocks.1.ln", "ln_f", "model", "blocks"]
    return gpt_case((words, where, SLOW), norm=lambda d: RMS(d, total=broken), dim=64)


class TimeNorm(nn.Module):
    def __init__(self, dim, axis):
        super().__init__()
        self.g, self.b, self.axis = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim)), axis

    def forward(self, x):
        mu, sd = x.mean(self.axis, keepdim=True), x.std(self.axis, keepdim=True)
        return (x - mu) / (sd + 1e-5) * self.g + self.b


def case_norm_over_time_axis(broken):
    words = LEAK + say("norm+axis | norm+dim | norm+time | norm+position | norm+sequence")
    where = ["blocks", "ln_f", "model", "labels", "data", "loss"]
    return gpt_case((words, where), norm=lambda d: TimeNorm(d, 1 if broken else -1))


def case_no_skip_around_attention(broken):
    def wiring(block, x):
        a = block.attn(block.ln1(x))
        x = a if broken else x + a
        return x + block.mlp(block.ln2(x))

    words = say("residual | skip | rank | collapse | vanish | position+same | token+alike")
    return gpt_case((words, ["blocks", "model", "tok_emb"], SLOW), wiring=wiring, depth=4)


def case_residual_added_twice(broken):
    def wiring(block, x):
        h = x + block.attn(block.ln1(x))
        h = h + block.mlp(block.ln2(h))
        return x + h if broken else h

    words = say("residual | skip | twice | doubl | grow+depth | stream+grow | later+block")
    return gpt_case((words, ["blocks", "model"], EXPLODE), wiring=wiring, depth=4)


def case_mlp_without_activation(broken):
    def mlp(dim):
        act = nn.Identity() if broken else nn.ReLU()
        return nn.Sequential(nn.Linear(dim, 4 * dim), act, nn.Linear(4 * dim, dim))

    words = say("nonlinear | non-linear | activation | linear+mlp | is linear | feed+linear")
    return gpt_case((words, ["blocks"]), mlp=mlp)


def case_same_block_times_n(broken):
    torch.manual_seed(3)
    model = GPT(depth=4)
    if broken:
        model.blocks = nn.ModuleList([model.blocks[0]] * 4)
    words = say("shar | same+module | same+block | same+object | same+parameter | tied")
    return case(model, pairs(), lm_loss, (words, ["blocks", "model"]))


def case_layers_in_plain_list(broken):
    torch.manual_seed(4)

    class Net(GPT):
        def __init__(self):
            super().__init__()
            layers = list(self.blocks)
            del self.blocks
            self.blocks = layers if broken else nn.ModuleList(layers)

    words = say("regist | plain+list | python+list | modulelist | not+parameters() | not+optimizer")
    return case(Net(), pairs(), lm_loss, (words, ["blocks", "model", "optimizer"]))


def case_tied_embedding_default_std(broken):
    torch.manual_seed(5)
    model = GPT(dim=64, init=None, tie=True)
    nn.init.normal_(model.pos_emb.weight, std=0.02)
    if not broken:
        nn.init.normal_(model.tok_emb.weight, std=0.02)
    words = say("embedding+std | embedding+large | embedding+scale | logit+large | loss+init")
    words += say("tied+init | readout+large | loss+start | loss+uniform | loss+chance")
    return case(model, pairs(), lm_loss, (words, ["tok_emb", "head", "model", "loss"], EXPLODE))


def case_constant_init(broken):
    def init(m):
        if isinstance(m, nn.Linear):
            if broken:
                nn.init.constant_(m.weight, 0.02)
            else:
                nn.init.normal_(m.weight, std=0.02)

    words = say("symmetr | constant | identical | same+value | equal | rank")
    return gpt_case((words, ["blocks", "head", "model"], SLOW + NO_GRAD), init=init)


# ---------------------------------------------------------------- labels, losses


def case_labels_not_shifted(broken):
    torch.manual_seed(6)
    rows = [(x, x.clone() if broken else y) for x, y in pairs()]
    words = say("shift | label+equal+input | label+same+input | label+input | copy | current+token")
    return case(GPT(), rows, lm_loss, (words, ["labels", "loss", "data", "model"]))


def case_labels_shifted_twice_hf(broken):
    torch.manual_seed(7)
    rows = [dict(input_ids=x, labels=y if broken else x) for x, y in pairs()]
    words = say("shift | twice | off by one | two+ahead | label+input+next")
    return case(hf_gpt2(), rows, None, (words, ["labels", "loss", "data", "model"]))


def case_pad_tokens_in_labels(broken):
    torch.manual_seed(8)
    rows = []
    for ids, real in padded():
        labels = ids.clone() if broken else ids.masked_fill(~real, -100)
        rows.append(dict(input_ids=ids, attention_mask=real.long(), labels=labels))
    words = say("pad+label | pad+loss | -100 | ignore_index | ignore+pad | padding+target")
    return case(hf_llama(), rows, None, (words, ["labels", "loss", "data"]))


def case_mlm_labels_alias_inputs(broken):
    torch.manual_seed(9)
    rows = []
    for s in range(8):
        ids = walk(B, T, 40 + s)
        labels = ids if broken else ids.clone()
        hide = torch.rand(B, T, generator=gen(s)) < 0.2
        ids[hide] = 1
        rows.append(dict(input_ids=ids, labels=torch.where(hide, labels, -100)))
    words = say("label+constant | label+same | label+one | single+class | mask+token+label")
    words += say("label+equal | target+same | label+input | distinct+label | copy")
    return case(hf_bert(), rows, None, (words, ["labels", "data", "loss"]))


def case_mlm_loss_on_visible_tokens(broken):
    torch.manual_seed(10)
    rows = []
    for s in range(8):
        ids = walk(B, T, 60 + s)
        hide = torch.rand(B, T, generator=gen(s)) < 0.15
        labels = ids.clone() if broken else ids.masked_fill(~hide, -100)
        rows.append(dict(input_ids=ids.masked_fill(hide, 1), labels=labels))
    words = say("label+input | label+visible | copy | -100 | unmasked | not masked | sees+label")
    return case(hf_bert(), rows, None, (words, ["labels", "data", "loss", "model"]))


def case_softmax_then_cross_entropy(broken):
    torch.manual_seed(11)
    model = TinyViT(activation=(lambda: nn.Softmax(-1)) if broken else nn.Identity)
    words = say("softmax | probabilit | normalized+twice | logit+range | logit+bound")
    return case(model, pictures(), image_loss, (words, ["activation", "loss", "classifier", "model"], SLOW))


def case_sigmoid_then_bce_with_logits(broken):
    torch.manual_seed(12)
    model = TextClassifier(classes=4)

    def loss(m, batch):
        ids, real, y = batch
        z = m(ids, real)
        if broken:
            z = torch.sigmoid(z)
        return F.binary_cross_entropy_with_logits(z, F.one_hot(y, 4).float())

    words = say("sigmoid | probabilit | twice | logit+range | logit+bound")
    return case(model, topics(), loss, (words, ["loss", "fc", "model"], SLOW))


def case_multilabel_with_cross_entropy(broken):
    torch.manual_seed(13)
    rows = []
    for s, (ids, real, y) in enumerate(topics()):
        tags = F.one_hot(y, 6).float()
        tags[:, 4] = (ids[:, 0] % 2).float()
        tags[:, 5] = (torch.rand(B, generator=gen(s)) < 0.5).float()
        rows.append((ids, real, tags))

    def loss(m, batch):
        ids, real, tags = batch
        z = m(ids, real)
        return F.cross_entropy(z, tags) if broken else F.binary_cross_entropy_with_logits(z, tags)

    words = say("multi+label | sum+one | bce | several+class | cross+entropy+target | distribution")
    return case(TextClassifier(classes=6), rows, loss, (words, ["loss", "labels", "data"]))


def case_logits_view_instead_of_transpose(broken):
    torch.manual_seed(14)

    def loss(m, batch):
        x, y = batch
        z = m(x)
        z = z.view(z.size(0), z.size(2), z.size(1)) if broken else z.transpose(1, 2)
        return F.cross_entropy(z, y)

    words = LEAK + say("view | transpose | reshape | layout | scrambl | logit+position | align")
    return case(GPT(), pairs(), loss, (words, ["loss", "model", "labels", "head"], SLOW))


def case_missing_minus(broken):
    torch.manual_seed(15)

    def loss(m, batch):
        x, y = batch
        picked = m(x).log_softmax(-1).gather(-1, y[..., None]).mean()
        return picked if broken else -picked

    words = say("sign | negative | maximi | minus | below+zero | wrong+direction")
    return case(GPT(), pairs(), loss, (words, ["loss", "model", "step"], EXPLODE))


def case_mse_broadcast(broken):
    torch.manual_seed(16)
    model = Forecaster(squeeze=not broken)
    words = say("broadcast | shape | (16, 1) | squeeze")
    return case(model, series(), mse_loss, (words, ["loss", "labels", "model", "data", "regressor"], SLOW))


def case_regression_targets_raw(broken):
    torch.manual_seed(17)
    rows = [(x, y if not broken else 52000.0 + 9000.0 * y) for x, y in series()]
    words = say("target+scale | target+normal | target+mean | label+scale | target+large")
    words += say("standardi | label+large | target+range | label+range | label+mean")
    return case(Forecaster(), rows, mse_loss, (words, ["labels", "loss", "data"], EXPLODE + SLOW))


def case_relu_on_regression_output(broken):
    torch.manual_seed(18)
    model = Forecaster(final=nn.ReLU if broken else nn.Identity)
    words = say("relu | negative+target | output+negative | cannot+reach | output+range | label+negative")
    return case(model, series(), mse_loss, (words, ["regressor", "model", "loss", "labels"], NO_GRAD + SLOW))


def two_views(count=8):
    return [
        (x, x + 0.3 * torch.randn(x.shape, generator=gen(900 + s)))
        for s, (x, _) in enumerate(pictures(count))
    ]


def contrast(temperature=0.1, targets=torch.arange):
    def loss(m, batch):
        a, b = (F.normalize(m(x), dim=-1) for x in batch)
        z = a @ b.T / temperature
        y = targets(len(a))
        return (F.cross_entropy(z, y) + F.cross_entropy(z.T, y)) / 2

    return loss


def case_contrastive_labels_zero(broken):
    torch.manual_seed(19)

    def targets(n):
        return torch.zeros(n, dtype=torch.long) if broken else torch.arange(n)

    words = say("label+constant | diagonal | positive | contrastive | same+class | single+class")
    words += say("collapse | depends+batch | other+example | order+batch")
    return case(
        TinyViT(D), two_views(), contrast(targets=targets), (words, ["loss", "labels", "model", "data"])
    )


def case_contrastive_temperature_inverted(broken):
    torch.manual_seed(19)
    loss = contrast(temperature=20.0 if broken else 1 / 20.0)
    words = say("temperature | logit+small | logit+range | logit+bound | flat | cannot+below | logit+scale")
    return case(TinyViT(D), two_views(), loss, (words, ["loss", "model"], SLOW))


# ---------------------------------------------------------------- data


def case_dataset_sorted_by_class(broken):
    torch.manual_seed(20)
    x = torch.cat([a for a, _ in pictures()])
    y = torch.cat([b for _, b in pictures()])
    order = torch.argsort(y, stable=True) if broken else torch.randperm(len(y), generator=gen(20))
    rows = [(x[i], y[i]) for i in order.split(B)]
    words = say("sort | shuffle | one+class | single+class | same+label | label+constant | class+batch")
    return case(TinyViT(), rows, image_loss, (words, ["data", "labels"], SLOW))


def case_next_iter_loader(broken):
    torch.manual_seed(21)
    rows = pairs()
    if broken:
        rows = [rows[0] for _ in rows]
    words = say("same+batch | identical | repeat | duplicate | equal+batch")
    return case(GPT(), rows, lm_loss, (words, ["data", "labels"]))


def case_answer_truncated_away(broken):
    torch.manual_seed(22)
    rows = []
    for s in range(8):
        ids = walk(4, 24, 80 + s)
        labels = ids.clone()
        labels[:, : 18 if s % 2 else 8] = -100
        stop = 16 if broken else 24
        rows.append(dict(input_ids=ids[:, :stop], labels=labels[:, :stop]))
    words = say("-100 | ignore | no+label | nan | empty | no+target")
    return case(hf_gpt2(), rows, None, (words, ["labels", "data", "loss", "step"]))


def case_tokenizer_mostly_unk(broken):
    torch.manual_seed(23)

    def encode(x):
        return torch.where(x >= 7, 1, x) if broken else x

    rows = [(encode(x), encode(y)) for x, y in pairs()]
    words = say("unk | one token | same token | single token | token+share | vocabulary+use")
    words += say("most+token | frequent | class+balance | imbalance | distinct | dominat | label+%")
    return case(GPT(), rows, lm_loss, (words, ["data", "labels", "tok_emb", "loss"]))


def case_collate_sorts_inputs_only(broken):
    torch.manual_seed(24)
    rows = []
    for ids, real, y in topics(count=12):
        order = real.sum(1).argsort(descending=True)
        rows.append((ids[order], real[order], y if broken else y[order]))
    words = say("label+align | label+shuffl | label+random | label+independent | label+input")
    words += say("signal+label | label+not+predict | noise+label")
    return case(TextClassifier(dropout=0.0), rows, topic_loss, (words, ["labels", "data"], SLOW))


def case_pixels_0_255(broken):
    torch.manual_seed(25)
    rows = [(x * 64 + 128 if broken else x, y) for x, y in pictures()]
    words = say("input+scale | pixel | input+normal | input+large | input+mean | 255")
    words += say("input+range | activation+large | standardi")
    return case(
        TinyViT(), rows, image_loss, (words, ["data", "patch_embed", "model", "layers"], EXPLODE + SLOW)
    )


def case_readout_of_first_example(broken):
    """Read x[0] for x[:, 0]: unnoticed because the batch is as large as the sequence is long."""
    torch.manual_seed(26)

    def pool(x, _real):
        return x[0] if broken else x[:, 0]

    filler = torch.randint(6, V, (B, T), generator=gen(26))
    rows = [(torch.where(r, i, filler), torch.ones_like(r), y) for i, r, y in topics()]
    words = say("across+batch | across+example | other+example | other+row | mix+example | batch+dimension")
    words += say("depends+batch | mix+batch | first+example | example+ignored | no effect | unused")
    truth = (words, ["fc", "model", "data", "encoder", "loss", "embedding"], SLOW)
    return case(TextClassifier(pool=pool), rows, topic_loss, truth)


# ---------------------------------------------------------------- encoder-decoder, mixture of experts


def seq2seq_loss(m, batch):
    src, tgt = batch
    return F.cross_entropy(m(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten())


def case_teacher_forcing_same_token(broken):
    torch.manual_seed(27)

    def loss(m, batch):
        src, tgt = batch
        inp = tgt[:, 1:] if broken else tgt[:, :-1]
        return F.cross_entropy(m(src, inp).flatten(0, 1), tgt[:, 1:].flatten())

    words = say("shift | decoder+input+label | label+input | sees+label | copy | leak | sees+target")
    return case(
        Translator(), translations(), loss, (words, ["labels", "loss", "data", "model", "decoder", "tgt_emb"])
    )


def case_cross_attention_to_itself(broken):
    torch.manual_seed(28)
    model = Translator(look=lambda h, memory: h if broken else memory)
    words = say("encoder+no gradient | encoder+gradient | source+ignored | cross | memory | encoder+unused")
    words += NO_GRAD + LEAK + say("unused | input+no effect")
    return case(
        model,
        translations(),
        seq2seq_loss,
        (words, ["encoder", "src_emb", "decoder", "model"], LEAK + NO_GRAD),
    )


def case_router_without_gradient(broken):
    def mlp(dim):
        return MoE(dim, weigh=not broken)

    words = NO_GRAD + say("router | expert | gate")
    return gpt_case((words, ["blocks.0.mlp", "blocks.1.mlp"]), mlp=mlp)


def balanced(sign=1.0):
    def loss(m, batch):
        return lm_loss(m, batch) + sign * 0.1 * sum(b.mlp.balance for b in m.blocks)

    return loss


def case_balance_loss_subtracted(broken):
    torch.manual_seed(29)
    words = say("balance | expert+collapse | expert+unused | router+collapse | expert+token")
    words += say("expert+load | auxiliary | one expert")
    return case(
        GPT(mlp=MoE), pairs(), balanced(-1.0 if broken else 1.0), (words, ["blocks", "loss", "model"])
    )


# ---------------------------------------------------------------- gradients, freezing, adapters, checkpoints


def case_no_grad_around_backbone(broken):
    torch.manual_seed(30)

    class Probe(TinyViT):
        def forward(self, img):
            with torch.set_grad_enabled(not broken):
                f = self.features(img)
            return self.classifier(f)

    words = NO_GRAD + say("no_grad | detach | graph")
    return case(
        Probe(),
        pictures(),
        image_loss,
        (words, ["patch_embed", "layers", "cls", "pos", "norm", "model"], SLOW),
    )


def case_loss_rewrapped(broken):
    torch.manual_seed(31)

    def loss(m, batch):
        out = m(**batch).loss
        return torch.tensor(out.item(), requires_grad=True) if broken else out

    rows = [dict(input_ids=i, attention_mask=r.long(), labels=y) for i, r, y in topics()]
    model = hf_bert("BertForSequenceClassification", num_labels=4)
    words = NO_GRAD + say("graph | detach | connect | leaf")
    return case(model, rows, loss, (words, ["loss", "model", "step", "bert", "optimizer"], SLOW))


def case_optimizer_before_new_head(broken):
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(32)
    small = dict(
        hidden_size=D, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16
    )
    model = ViTForImageClassification(ViTConfig(patch_size=4, num_labels=10, **small))
    opt = adamw(model)
    model.classifier = nn.Linear(D, 4)
    if not broken:
        opt = adamw(model)
    words = say("not+optimizer | missing+optimizer | optimizer+lack | optimizer+hold | never+update")
    truth = (words, ["classifier", "optimizer"], SLOW)
    return case(model, pictures(), lambda m, b: F.cross_entropy(m(b[0]).logits, b[1]), truth, optimizer=opt)


def case_optimizer_of_a_copy(broken):
    torch.manual_seed(33)
    model = GPT()
    opt = adamw(copy.deepcopy(model) if broken else model)
    words = say("not+optimizer | optimizer+other | optimizer+copy | missing+optimizer | not+model")
    words += say("optimizer+none | optimizer+different | never+update")
    return case(model, pairs(), lm_loss, (words, [], SLOW + NO_GRAD), optimizer=opt)


def case_decay_groups_lose_embeddings(broken):
    torch.manual_seed(34)
    model = GPT()
    decay, rest = [], []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            decay.append(module.weight)
            if module.bias is not None:
                rest.append(module.bias)
        elif isinstance(module, nn.LayerNorm) or (isinstance(module, nn.Embedding) and not broken):
            rest += list(module.parameters())
    opt = torch.optim.AdamW(
        [dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)], lr=1e-3
    )
    words = say("not+optimizer | missing+optimizer | optimizer+lack | never+update | left out")
    return case(model, pairs(), lm_loss, (words, ["tok_emb", "pos_emb", "optimizer"]), optimizer=opt)


def case_lora_both_zero(broken):
    torch.manual_seed(35)
    model = add_lora(pretrained(GPT(), pairs(), lm_loss), both_zero=broken)
    words = NO_GRAD + say("lora | adapter | both+zero | saddle")
    return case(model, pairs(), lm_loss, (words, ["blocks", "model"], SLOW), optimizer=adamw(model, 5e-3))


def case_lora_freezes_new_head(broken):
    torch.manual_seed(36)
    model = pretrained(TinyViT(), pictures(), image_loss)
    model.classifier.reset_parameters()
    for p in model.parameters():
        p.requires_grad = False
    for layer in model.layers:
        layer.attn.qkv = LoRALinear(layer.attn.qkv)
    if not broken:
        model.classifier.requires_grad_(True)
    words = say("frozen | requires_grad | head+not train | freez")
    return case(
        model,
        pictures(),
        image_loss,
        (words, ["classifier", "model", "optimizer"], SLOW),
        optimizer=adamw(model, 5e-3),
    )


def case_checkpoint_prefix_strict_false(broken):
    torch.manual_seed(37)
    donor, model = pretrained(TinyViT(), pictures(), image_loss, 3), TinyViT()
    saved = {"module." + k: v for k, v in donor.state_dict().items() if not k.startswith("classifier")}
    model.load_state_dict(saved if broken else {k[7:]: v for k, v in saved.items()}, strict=False)
    for name, p in model.named_parameters():
        p.requires_grad = name.startswith("classifier")
    words = say("checkpoint | load | random+frozen | frozen+init | untrained | pretrained")
    return case(
        model, pictures(), image_loss, (words, ["layers", "patch_embed", "model", "pos", "cls"], SLOW)
    )


def case_padding_idx_on_real_token(broken):
    torch.manual_seed(38)
    model = TextClassifier(pad_id=2 if broken else 0)
    words = say("padding_idx | padding+embedding | padding+token | embedding+zero | row+gradient")
    return case(model, topics(), topic_loss, (words, ["embedding", "model", "data"]))


# ---------------------------------------------------------------- dropout and modes


def case_dropout_is_keep_prob(broken):
    torch.manual_seed(39)
    model = TextClassifier(dropout=0.9 if broken else 0.1)
    words = say("dropout")
    return case(model, topics(), topic_loss, (words, ["encoder", "model"], SLOW))


class AlwaysDrop(nn.Module):
    def __init__(self, follow):
        super().__init__()
        self.follow = follow

    def forward(self, x):
        return F.dropout(x, 0.3, training=self.training) if self.follow else F.dropout(x, 0.3)


def case_functional_dropout_in_eval(broken):
    torch.manual_seed(40)
    model = TinyViT(drop=lambda: AlwaysDrop(not broken))
    words = say("dropout | eval+random | eval+determin | eval()+differ | stochastic")
    return case(model, pictures(), image_loss, (words, ["drop", "model"]))


def case_eval_left_on(broken):
    torch.manual_seed(41)
    model = hf_bert("BertForSequenceClassification", num_labels=4)
    rows = [dict(input_ids=i, attention_mask=r.long(), labels=y) for i, r, y in topics()]

    def step(m, opt, batch, k):
        if k == 0 or not broken:
            m.train()
        opt.zero_grad()
        loss = m(**batch).loss
        loss.backward()
        opt.step()
        m.eval()
        with torch.no_grad():
            m(**rows[-1])
        return loss

    words = say("eval | training mode | train() | dropout")
    return case(model, rows, None, (words, ["step", "model", "bert", "dropout"]), step=step)


# ---------------------------------------------------------------- optimizer, loop, schedule, precision


def train(loss=lm_loss, before=None, after=None, clip=None):
    def step(model, optimizer, batch, k):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if before:
            before(model, optimizer, k)
        optimizer.step()
        if after:
            after(model, optimizer, k)
        return value

    return step


def case_adam_lr_point_three(broken):
    torch.manual_seed(42)
    model = hf_gpt2()
    rows = [dict(input_ids=x, labels=x) for x, _ in pairs()]
    words = say("learning rate | lr | step size | update+large")
    opt = torch.optim.Adam(model.parameters(), lr=0.3 if broken else 3e-3)
    return case(
        model,
        rows,
        None,
        (words, ["optimizer", "step", "model", "transformer", "loss"], EXPLODE),
        optimizer=opt,
    )


def case_betas_swapped(broken):
    torch.manual_seed(43)
    model = GPT()
    opt = adamw(model, 1e-3, betas=(0.999, 0.9) if broken else (0.9, 0.999))
    words = say("beta | momentum")
    return case(model, pairs(), lm_loss, (words, ["optimizer"], EXPLODE), optimizer=opt)


def case_weight_decay_typo(broken):
    torch.manual_seed(44)
    model = hf_llama()
    rows = [dict(input_ids=x, labels=x) for x, _ in pairs()]
    opt = adamw(model, 3e-3, weight_decay=10.0 if broken else 0.1)
    words = say("weight decay | weight_decay | decay")
    return case(model, rows, None, (words, ["optimizer", "model", "lm_head"], SLOW), optimizer=opt)


def case_sum_reduction_with_sgd(broken):
    torch.manual_seed(45)
    model = GPT()

    def loss(m, batch):
        x, y = batch
        return F.cross_entropy(m(x).flatten(0, 1), y.flatten(), reduction="sum" if broken else "mean")

    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    words = say("sum | reduction | mean | loss+scale | loss+large | per token | learning rate | diverge")
    return case(model, pairs(), loss, (words, ["loss", "optimizer", "step", "model"], EXPLODE), optimizer=opt)


def case_zero_grad_forgotten(broken):
    torch.manual_seed(46)

    def step(model, optimizer, batch, _k):
        loss = lm_loss(model, batch)
        if not broken:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    words = say("zero_grad | accumulat | gradient+clear | stale | earlier+gradient")
    return case(GPT(), pairs(), lm_loss, (words, ["step", "optimizer"], EXPLODE), step=step)


def case_zero_grad_before_step(broken):
    torch.manual_seed(47)

    def before(_model, optimizer, _k):
        if broken:
            optimizer.zero_grad()

    words = say("zero_grad | no+gradient | clear | not+change | never+change | not+move | not+update")
    return case(
        GPT(),
        pairs(),
        lm_loss,
        (words, ["step", "optimizer", "model"], SLOW + NO_GRAD),
        step=train(before=before),
    )


def case_accumulation_wiped(broken):
    torch.manual_seed(48)

    def step(model, optimizer, batch, k):
        if broken or k % 4 == 0:
            optimizer.zero_grad()
        loss = lm_loss(model, batch) / 4
        loss.backward()
        if k % 4 == 3:
            optimizer.step()
        return loss * 4

    words = say("accumulat | zero_grad | discard | lost | thrown")
    return case(GPT(), pairs(), lm_loss, (words, ["step", "optimizer"]), step=step, steps=8)


def case_clip_before_backward(broken):
    torch.manual_seed(49)
    model = Forecaster()

    def step(m, optimizer, batch, _k):
        optimizer.zero_grad()
        loss = F.mse_loss(m(batch[0]), batch[1]) * 20
        if broken:
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            loss.backward()
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        optimizer.step()
        return loss

    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    words = say("clip")
    return case(
        model,
        series(),
        lambda m, b: 20 * mse_loss(m, b),
        (words, ["step", "optimizer"], EXPLODE),
        optimizer=opt,
        step=step,
    )


def case_clip_scaled_gradients(broken):
    torch.manual_seed(50)
    model = GPT()
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)

    def step(m, optimizer, batch, _k):
        optimizer.zero_grad()
        loss = lm_loss(m, batch)
        scaler.scale(loss).backward()
        if not broken:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    words = say("unscale | clip | scaler | gradscaler | update+small")
    truth = (words, ["step", "optimizer"], SLOW)
    return case(model, pairs(), lm_loss, truth, optimizer=opt, step=step, also=[scaler])


def case_warmup_integer_division(broken):
    torch.manual_seed(51)
    model = GPT()
    opt = adamw(model)

    def ramp(k):
        return min(1.0, (k + 1) // 200 if broken else (k + 1) / 200)

    sched = torch.optim.lr_scheduler.LambdaLR(opt, ramp)
    step = train(after=lambda m, o, k: sched.step())
    words = say("learning rate+zero | learning rate+0 | lr+0 | schedul | warmup | warm-up")
    return case(
        model, pairs(), lm_loss, (words, ["optimizer", "step"], SLOW), optimizer=opt, step=step, also=[sched]
    )


def case_cosine_in_epochs_stepped_per_batch(broken):
    torch.manual_seed(52)
    model = GPT()
    opt = adamw(model, 3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=3 if broken else 3 * 100)
    step = train(after=lambda m, o, k: sched.step())
    words = say("schedul | t_max | learning rate+rise | learning rate+zero | oscillat | cosine")
    words += say("learning rate+fall")
    return case(
        model, pairs(), lm_loss, (words, ["optimizer", "step"]), optimizer=opt, step=step, also=[sched]
    )


def case_bf16_weights_tiny_updates(broken):
    torch.manual_seed(53)
    model = GPT(init=None).to(torch.bfloat16 if broken else torch.float32)
    words = say("bf16 | bfloat16 | precision | round | half")
    opt = adamw(model, 5e-5)
    return case(
        model,
        pairs(),
        lm_loss,
        (words, ["optimizer", "model", "step", "ln_f", "blocks"], SLOW),
        optimizer=opt,
    )


def case_ema_copied_back(broken):
    torch.manual_seed(54)
    model = GPT()
    shadow = copy.deepcopy(model).requires_grad_(False)

    def after(m, _optimizer, _k):
        with torch.no_grad():
            for slow, fast in zip(shadow.parameters(), m.parameters(), strict=True):
                slow.lerp_(fast, 0.001)
                if broken:
                    fast.copy_(slow)

    words = say("ema | average | overwrit | after+step | update+lost | not+move | undone")
    words += say("update+small | weights+not+optimizer | revert | weights+change+optimizer")
    return case(
        model,
        pairs(),
        lm_loss,
        (words, ["step", "optimizer", "model"], SLOW),
        step=train(after=after),
        also=[shadow],
    )


def case_layerwise_decay_to_nothing(broken):
    torch.manual_seed(55)
    model = TextClassifier()
    head = list(model.fc.parameters())
    body = [p for n, p in model.named_parameters() if not n.startswith("fc.")]
    low = 1e-3 * 0.9 ** (120 if broken else 1)
    opt = torch.optim.AdamW([dict(params=body, lr=low), dict(params=head, lr=1e-3)])
    words = say("learning rate | lr | group | update+small")
    return case(
        model,
        topics(),
        topic_loss,
        (words, ["optimizer", "encoder", "embedding", "position"], SLOW),
        optimizer=opt,
    )


# ---------------------------------------------------------------- controls: unusual and healthy


def control_zero_readout():
    torch.manual_seed(60)
    model = GPT()
    nn.init.zeros_(model.head.weight)
    return case(model, pairs(), lm_loss)


def control_lora_on_frozen_base():
    torch.manual_seed(61)
    model = add_lora(pretrained(GPT(init=None), pairs(), lm_loss))
    return case(model, pairs(), lm_loss, optimizer=adamw(model, 5e-3))


def control_rezero():
    torch.manual_seed(62)

    class Gated(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.f, self.gate = feed_forward(dim), nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return self.gate * self.f(x)

    return case(GPT(mlp=Gated, depth=3), pairs(), lm_loss)


def control_albert_style_sharing():
    from transformers import AlbertConfig, AlbertForMaskedLM

    torch.manual_seed(63)
    small = dict(
        embedding_size=16, hidden_size=D, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64
    )
    model = AlbertForMaskedLM(AlbertConfig(vocab_size=V, max_position_embeddings=64, **small))
    rows = []
    for s in range(8):
        ids = walk(B, T, 60 + s)
        hide = torch.rand(B, T, generator=gen(s)) < 0.15
        rows.append(dict(input_ids=ids.masked_fill(hide, 1), labels=ids.masked_fill(~hide, -100)))
    return case(model, rows)


def control_prefix_lm():
    torch.manual_seed(64)

    def mix(q, k, v):
        t = q.size(-2)
        keep = torch.ones(t, t).tril().bool()
        keep[:, :6] = True
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)

    rows = [(x, y.clone()) for x, y in pairs()]
    for _, y in rows:
        y[:, :5] = -100
    return case(GPT(mix=mix), rows, lm_loss)


def control_sgd_large_rate():
    torch.manual_seed(65)
    model = GPT()
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return case(model, pairs(), lm_loss, optimizer=opt, step=train(clip=1.0))


def control_linear_probe():
    torch.manual_seed(66)
    model = pretrained(TinyViT(), pictures(), image_loss)
    model.classifier.reset_parameters()
    for name, p in model.named_parameters():
        p.requires_grad = name.startswith("classifier")
    return case(model, pictures(), image_loss, optimizer=adamw(model, 1e-2))


def control_rare_positive_class():
    torch.manual_seed(67)
    rows = [(i, r, ((y == 3) & (i[:, 0] % 2 == 0)).long()) for i, r, y in topics()]
    return case(TextClassifier(classes=2), rows, topic_loss)


def control_accumulation_and_warmup():
    torch.manual_seed(68)
    model = GPT()
    opt = adamw(model, 3e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, k / 20))

    def step(m, optimizer, batch, k):
        loss = lm_loss(m, batch)
        (loss / 2).backward()
        if k % 2 == 1:
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            optimizer.step()
            sched.step()
            optimizer.zero_grad(set_to_none=True)
        return loss

    return case(model, pairs(), lm_loss, optimizer=opt, step=step, also=[sched])


def control_left_padded_chat():
    torch.manual_seed(69)
    rows = []
    for ids, real in padded():
        ids, real = ids.flip(1), real.flip(1)
        labels = ids.masked_fill(~real, -100)
        labels[:, :12] = -100
        pos = (real.long().cumsum(1) - 1).clamp(min=0)
        rows.append(dict(input_ids=ids, attention_mask=real.long(), position_ids=pos, labels=labels))
    return case(hf_gpt2(), rows)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=3e-4, beta=0.9):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    m = self.state[p].setdefault("m", torch.zeros_like(p))
                    p.sub_(group["lr"] * (group["beta"] * m + (1 - group["beta"]) * p.grad).sign())
                    m.lerp_(p.grad, 0.01)
        return closure() if closure else None


def control_own_optimizer():
    torch.manual_seed(70)
    model = GPT()
    return case(model, pairs(), lm_loss, optimizer=Lion(model.parameters()))


def control_top2_experts():
    torch.manual_seed(71)
    return case(GPT(mlp=lambda d: MoE(d, k=2)), pairs(), balanced())


def control_no_positions_parallel_blocks():
    torch.manual_seed(72)

    def wiring(block, x):
        h = block.ln1(x)
        return x + block.attn(h) + block.mlp(h)

    model = GPT(places=None, wiring=wiring, norm=RMS)
    for block in model.blocks:
        del block.ln2
    return case(model, pairs(), lm_loss)


def control_bf16_autocast():
    torch.manual_seed(73)

    def loss(m, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = m(batch[0])
        return F.cross_entropy(z.float().flatten(0, 1), batch[1].flatten())

    return case(GPT(), pairs(), loss)


def control_t5():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(74)
    small = dict(d_model=D, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu")
    model = T5ForConditionalGeneration(T5Config(vocab_size=V, decoder_start_token_id=0, **small))
    rows = [dict(input_ids=s, labels=t[:, 1:].contiguous()) for s, t in translations()]
    return case(model, rows)


def control_momentum_teacher():
    torch.manual_seed(75)

    class Byol(nn.Module):
        def __init__(self):
            super().__init__()
            self.online = TinyViT(D)
            self.teacher = copy.deepcopy(self.online).requires_grad_(False)
            self.predictor = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))

        def forward(self, a, b):
            with torch.no_grad():
                goal = F.normalize(self.teacher(b), dim=-1)
            return 2 - 2 * (F.normalize(self.predictor(self.online(a)), dim=-1) * goal).sum(-1).mean()

    def after(m, _optimizer, _k):
        with torch.no_grad():
            for slow, fast in zip(m.teacher.parameters(), m.online.parameters(), strict=True):
                slow.lerp_(fast, 0.01)

    def loss(m, batch):
        return m(*batch)

    return case(Byol(), two_views(), loss, step=train(loss, after=after))


def control_clip_learned_temperature():
    torch.manual_seed(76)

    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.text = TinyViT(D), TextClassifier(classes=D, dropout=0.0)
            self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def forward(self, img, ids, real):
            a, b = F.normalize(self.image(img), dim=-1), F.normalize(self.text(ids, real), dim=-1)
            return self.logit_scale.exp() * a @ b.T

    def loss(m, batch):
        z = m(*batch)
        y = torch.arange(len(z))
        return (F.cross_entropy(z, y) + F.cross_entropy(z.T, y)) / 2

    rows = [(x, i, r) for (x, _), (i, r, _) in zip(pictures(), topics(), strict=True)]
    return case(Clip(), rows, loss)


def control_huber_heavy_tails():
    torch.manual_seed(77)
    rows = [(x, y + 6.0 * (y > 2.0)) for x, y in series()]
    return case(Forecaster(), rows, lambda m, b: F.smooth_l1_loss(m(b[0]), b[1]))
