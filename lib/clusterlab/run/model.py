"""One decoder-only transformer, built from the same `Transformer` shape that the formulas take.

    shapes   [b, s] tokens → [b, s, h] residual stream → [b, s, v] logits
             b batch, s sequence, h hidden, a heads, d head_dim, v vocab

Every parallelism of this room trains this model, so that what differs between two runs is the strategy alone. It has
exactly `shape.parameters()` parameters: Llama-like (RMSNorm, SwiGLU, rotary, no bias) or GPT-like (LayerNorm, GELU,
learned positions, bias, dropout), as the shape says. Attention takes its head count from the width of its weights,
not from the shape: so it does not notice when tensor parallelism gives it a few heads only.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def drop(x, p):
    """Dropout that saves one byte an element: on CPU, nn.Dropout would save its scaled mask in the dtype of x."""
    return torch.native_dropout(x, p, True)[0] if p else x


def rotary(x, start=0):
    """Rotate [b, s, heads, d] by position (Su et al., arXiv:2104.09864, eq. 34); `start` is the first position."""
    s, d = x.shape[1], x.shape[3]
    frequency = 10000.0 ** (-torch.arange(0, d, 2, device=x.device) / d)
    angle = torch.outer(torch.arange(start, start + s, device=x.device), frequency)[:, None, :]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def norm(shape):
    return (nn.RMSNorm if shape.norm == "rms" else nn.LayerNorm)(shape.hidden)


class Attention(nn.Module):
    """Causal attention, grouped queries allowed. `gather` and `start` are what context parallelism fills in."""

    def __init__(self, shape, attention="flash", dropout=0.0):
        super().__init__()
        self.head_dim, self.eager, self.dropout = shape.head_dim, attention == "eager", dropout
        self.rotary, self.start, self.gather = not shape.positions, 0, None
        q, kv, bias = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, bool(shape.bias)   # or "qkv"
        self.q, self.k, self.v = (nn.Linear(shape.hidden, width, bias=bias) for width in (q, kv, kv))
        self.q_norm, self.k_norm = (nn.RMSNorm(shape.head_dim) if shape.qk_norm else None for _ in "qk")
        self.out = nn.Linear(q, shape.hidden, bias=shape.bias is True)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.head_dim)) for f in (self.q, self.k, self.v))     # [b, s, heads, d]
        if self.q_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary:
            q, k = rotary(q, self.start), rotary(k, self.start)
        if self.gather:                                             # context parallel: keys and values of all ranks
            k, v = self.gather(k), self.gather(v)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))                                           # [b, heads, s, d]
        y = self.written_out(q, k, v) if self.eager or self.gather else F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout, enable_gqa=q.shape[1] != k.shape[1])
        return self.out(y.transpose(1, 2).flatten(2))

    def written_out(self, q, k, v):
        """The same in single steps: it keeps the [b, heads, s, s] scores, which fused attention never stores."""
        heads, s, kv_heads = q.shape[1], q.shape[2], k.shape[1]
        q = q.unflatten(1, (kv_heads, -1)).flatten(2, 3)                  # queries of a group, one below the other
        scores = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).unflatten(2, (heads // kv_heads, s))
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1 + self.start)
        weights = drop(scores.masked_fill(hidden, float("-inf")).softmax(-1), self.dropout)
        return (weights.flatten(2, 3) @ v).unflatten(2, (heads // kv_heads, s)).flatten(1, 2)


class MLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        bias = shape.bias is True
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=bias)
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=bias) if shape.gated else None
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=bias)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x) if self.gate else F.gelu(self.up(x)))


class Experts(nn.Module):
    """Mixture of experts without capacity limit: each token goes to its best `experts_per_token`, none is dropped.

    `exchange` is what expert parallelism fills in: it takes the tokens sorted by expert to the ranks that hold them.
    """

    def __init__(self, shape):
        super().__init__()
        self.chosen, self.exchange = shape.experts_per_token, None
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = nn.ModuleList(MLP(shape) for _ in range(shape.experts))

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weight, expert = self.router(tokens).softmax(-1).topk(self.chosen)
        order = expert.flatten().argsort(stable=True)                              # token-choices, grouped by expert
        counts = expert.flatten().bincount(minlength=self.router.out_features).tolist()
        grouped = tokens[order // self.chosen]
        results = (self.exchange or self.local)(grouped, counts)
        results = results * weight.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // self.chosen, results).view_as(x)

    def local(self, grouped, counts):
        return torch.cat([f(part) for f, part in zip(self.experts, grouped.split(counts), strict=True)])


class Block(nn.Module):
    def __init__(self, shape, attention="flash", dropout=0.0):
        super().__init__()
        self.attention_norm, self.mlp_norm = norm(shape), norm(shape)
        self.attention = Attention(shape, attention, dropout)
        self.mlp = Experts(shape) if shape.experts > 1 else MLP(shape)
        self.dropout = dropout

    def forward(self, x):
        x = x + drop(self.attention(self.attention_norm(x)), self.dropout)
        return x + drop(self.mlp(self.mlp_norm(x)), self.dropout)


class Decoder(nn.Module):
    """The whole model. A pipeline stage sets what it lacks to None and deletes the layers of others."""

    def __init__(self, shape, *, attention="flash", dropout=0.0, recompute="none"):
        super().__init__()
        if recompute not in ("none", "full"):
            raise ValueError(f'recompute={recompute!r}: "none" or "full"')
        self.recompute, self.start = recompute == "full", 0
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.positions, shape.hidden) if shape.positions else None
        self.embedding_norm = norm(shape) if shape.embedding_norm else None
        self.layers = nn.ModuleDict({str(i): Block(shape, attention, dropout) for i in range(shape.layers)})
        self.norm = norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def forward(self, x):
        if self.embedding:
            x = self.embedding(x)
        if self.positions:
            x = x + self.positions(torch.arange(self.start, self.start + x.shape[1], device=x.device))
        if self.embedding_norm:
            x = self.embedding_norm(x)
        for layer in self.layers.values():
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(self.norm(x)) if self.head else x


def token_losses(logits, targets):
    """Sum of the cross-entropies of all tokens: a sum, so that shares of a batch simply add up.

    In FP32, but summed in FP64: a sum in FP32 would round away the differences between strategies.
    """
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), reduction="none").double().sum()
