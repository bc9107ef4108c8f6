"""A transformer written with torch modules: the oracle for parameter counts, FLOP and stored activations."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    """One block, each op by its own kernel; experts are visited at even load, the first k by every token."""

    def __init__(self, m, recompute="none", attention="eager", dropout=0.0):
        super().__init__()
        self.m, self.recompute, self.kind, self.dropout = m, recompute, attention, dropout
        qkv_bias = m.bias in (True, "qkv")
        norm = nn.LayerNorm if m.norm == "layer" else nn.RMSNorm
        self.attention_norm, self.mlp_norm = norm(m.hidden), norm(m.hidden)
        self.q = nn.Linear(m.hidden, m.heads * m.head_dim, bias=qkv_bias)
        self.k = nn.Linear(m.hidden, m.kv_heads * m.head_dim, bias=qkv_bias)
        self.v = nn.Linear(m.hidden, m.kv_heads * m.head_dim, bias=qkv_bias)
        self.o = nn.Linear(m.heads * m.head_dim, m.hidden, bias=m.bias is True)
        if m.qk_norm:
            self.q_norm, self.k_norm = norm(m.head_dim), norm(m.head_dim)
        if m.experts > 1:
            self.router = nn.Linear(m.hidden, m.experts, bias=False)
        names = ("gate", "up", "down") if m.gated else ("up", "down")
        self.experts = nn.ModuleList(nn.ModuleDict({
            name: nn.Linear(*((m.ffn, m.hidden) if name == "down" else (m.hidden, m.ffn)), bias=m.bias is True)
            for name in names}) for _ in range(m.experts))

    def core(self, q, k, v):
        if self.kind == "flash":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        # the query heads of one key head side by side, so that keys and values are not copied for each
        grouped = q.reshape(q.shape[0], self.m.kv_heads, -1, self.m.head_dim)
        weights = F.softmax(grouped @ k.transpose(-1, -2), dim=-1)
        if self.dropout:
            weights = torch.native_dropout(weights, self.dropout, True)[0]
        return (weights @ v).reshape(q.shape)

    def forward(self, x):
        m, (batch, seq, _) = self.m, x.shape
        y = self.attention_norm(x)
        q, k, v = (f(y).view(batch, seq, -1, m.head_dim) for f in (self.q, self.k, self.v))
        if m.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        core = self.core
        if self.recompute == "selective":
            y = checkpoint(core, q, k, v, use_reentrant=False)
        else:
            y = core(q, k, v)
        y = self.o(y.transpose(1, 2).reshape(batch, seq, -1))
        x = x + (torch.native_dropout(y, self.dropout, True)[0] if self.dropout else y)
        y = self.mlp_norm(x)
        z = 0
        score = self.router(y).softmax(-1) if m.experts > 1 else None
        for number in range(m.experts_per_token):
            expert = self.experts[number]
            sent = y[:, torch.arange(seq, device=y.device)] if m.experts > 1 else y      # a copy, as dispatch makes
            if m.gated:
                out = expert["down"](F.silu(expert["gate"](sent)) * expert["up"](sent))
            else:
                out = expert["down"](F.gelu(expert["up"](sent)))
            z = z + (out * score[..., number, None] if m.experts > 1 else out)
        return x + (torch.native_dropout(z, self.dropout, True)[0] if self.dropout else z)


class Model(nn.Module):
    def __init__(self, m, recompute="none", **how):
        super().__init__()
        norm = nn.LayerNorm if m.norm == "layer" else nn.RMSNorm
        self.recompute = recompute
        self.embedding = nn.Embedding(m.vocab, m.hidden)
        self.positions = nn.Embedding(m.positions, m.hidden) if m.positions else None
        self.embedding_norm = norm(m.hidden) if m.embedding_norm else nn.Identity()
        self.layers = nn.ModuleList(Layer(m, recompute, **how) for _ in range(m.layers))
        self.norm = norm(m.hidden)
        self.head = nn.Linear(m.hidden, m.vocab, bias=False)
        if m.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[:tokens.shape[1]]
        x = self.embedding_norm(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute == "full" else layer(x)
        return self.head(self.norm(x))
