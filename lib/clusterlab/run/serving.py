"""Serving a small Transformer on one thread of a CPU: steps that write one token a sequence, and what bounds them.

    shapes   [b, n] new tokens → [b, vocab] logits of the last one; keys and values [layers, b, kv_heads, most, head_dim]

The model is the one that all of this room trains (`model.Decoder`), with random weights, for time does not depend on
what they are. How its matrices lie in memory does matter: torch's plain layout is copied into the order of the CPU's
matrix library at each product with two vectors or more, and the copy takes longer than the product. So they are packed
once, as serving engines do. Seconds are of this process: what other programs do meanwhile does not count.
"""

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from clusterlab.run.memory_probe import reading
from clusterlab.run.model import Decoder, rotary
from clusterlab.run.timing import threads

BITS = (32, 16, 8)


def packs(bits):
    """Whether torch can pack weights of so many bits here: 32 and 16 need oneDNN, and 16 a CPU that it does bf16 on.

    >>> packs(8)
    True
    """
    return bits == 8 or (torch.backends.mkldnn.is_available()
                         and (bits == 32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()))


class Packed(nn.Module):
    """A linear layer without bias whose weights lie in the order in which the CPU's matrix library reads them.

    32 and 16 bits are fp32 and bf16; 8 bits are integers with a scale a row, which become bf16 again as they are used.
    """

    def __init__(self, linear, bits):
        super().__init__()
        weight = linear.weight.detach()
        self.bits = bits
        if bits == 8:
            scale = weight.abs().amax(1).clamp_min(1e-30) / 127
            self.weight, self.scale = (weight / scale[:, None]).round().to(torch.int8), scale.bfloat16()
        else:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight if bits == 32 else weight.bfloat16(), 8)

    def forward(self, x):
        if self.bits == 8:
            return torch._weight_int8pack_mm(x.flatten(0, -2), self.weight, self.scale).unflatten(0, x.shape[:-1])
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")


class Cache:
    """Keys and values of all layers for `batch` sequences of at most `most` tokens; `length` tokens are in it.

    >>> from clusterlab.transformer import Transformer
    >>> Cache(Transformer(layers=2, hidden=8, heads=2, vocab=16), batch=3, most=5).bytes  # 2·2·8 numbers a token
    1920
    """

    def __init__(self, shape, batch, most, dtype=torch.float32):
        size = (shape.layers, batch, shape.kv_heads, most, shape.head_dim)
        self.keys, self.values, self.length = torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype), 0

    @property
    def bytes(self):
        return self.keys.nbytes + self.values.nbytes


class Server:
    """A model of `shape` ready to serve: `advance` takes new tokens, `generate` writes some, greedily.

    `bits` of a weight: 32, 16 or 8. `packed=False` leaves 32 or 16 bits in torch's layout, where they also stay when
    they cannot be packed here. Raises ValueError for other bits, and for a shape that is not Llama-like: rotary, no bias, one expert.

    >>> from clusterlab.transformer import Transformer
    >>> server = Server(Transformer(layers=2, hidden=16, heads=4, kv_heads=2, vocab=32))
    >>> prompt = torch.tensor([[3, 1, 4, 1, 5]])
    >>> torch.equal(server.generate(prompt, 6)[0], server.generate(prompt, 6, cached=False)[0])
    True
    """

    def __init__(self, shape, *, bits=32, packed=True, seed=0):
        if bits not in BITS:
            raise ValueError(f"bits={bits!r}: one of {', '.join(map(str, BITS))}")
        if shape.positions or shape.bias or shape.experts > 1 or shape.qk_norm or shape.embedding_norm:
            raise ValueError(f"{shape!r}: serving takes rotary positions, no bias, one expert, no further norms")
        torch.manual_seed(seed)
        self.shape, self.model = shape, Decoder(shape).requires_grad_(False)
        self.dtype = torch.float32 if bits == 32 else torch.bfloat16
        if packs(bits) and (packed or bits == 8):
            self._pack(self.model, bits)
        self.model.to(self.dtype)

    def _pack(self, module, bits):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, Packed(child, bits))
            else:
                self._pack(child, bits)

    def cache(self, batch, most):
        """An empty cache in the numbers' format of this server."""
        return Cache(self.shape, batch, most, self.dtype)

    def advance(self, tokens, cache):
        """Put [b, n] tokens behind those in the cache; the logits [b, vocab] of what follows the last of them."""
        start, x = cache.length, self.model.embedding(tokens)
        end = start + tokens.shape[1]
        for i, layer in enumerate(self.model.layers.values()):
            x = x + self._attend(layer.attention, layer.attention_norm(x), cache.keys[i], cache.values[i], start, end)
            x = x + layer.mlp(layer.mlp_norm(x))
        cache.length = end
        return self.model.head(self.model.norm(x[:, -1:]))[:, 0].float()

    def _attend(self, attention, x, keys, values, start, end):
        q, k, v = (f(x).unflatten(-1, (-1, self.shape.head_dim)) for f in (attention.q, attention.k, attention.v))
        keys[:, :, start:end] = rotary(k, start).transpose(1, 2)
        values[:, :, start:end] = v.transpose(1, 2)
        hidden = None if end - start == 1 else torch.ones(end - start, end, dtype=torch.bool).tril(start)
        y = F.scaled_dot_product_attention(rotary(q, start).transpose(1, 2), keys[:, :, :end], values[:, :, :end],
                                           attn_mask=hidden, enable_gqa=self.shape.heads != self.shape.kv_heads)
        return attention.out(y.transpose(1, 2).flatten(2))

    def generate(self, prompt, count, *, cached=True):
        """(the next `count` tokens of each row of `prompt`, seconds); without a cache each step starts over."""
        tokens, most = prompt, prompt.shape[1] + count
        with torch.no_grad(), threads(1):
            start, cache = time.process_time(), self.cache(len(prompt), most)
            logits = self.advance(tokens, cache)
            for _ in range(count - 1):
                tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), dim=1)
                logits = (self.advance(tokens[:, -1:], cache) if cached
                          else self.advance(tokens, self.cache(len(prompt), most)))
            tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), dim=1)
        return tokens[:, prompt.shape[1]:], time.process_time() - start

    def matrices(self):
        """(module, numbers it takes, numbers it gives) of every linear layer, in the order in which a token meets them."""
        s = self.shape
        for layer in self.model.layers.values():
            a, m, query, key = layer.attention, layer.mlp, s.heads * s.head_dim, s.kv_heads * s.head_dim
            yield from ((a.q, s.hidden, query), (a.k, s.hidden, key), (a.v, s.hidden, key), (a.out, query, s.hidden))
            yield from ((m.up, s.hidden, s.ffn), *([(m.gate, s.hidden, s.ffn)] if m.gate else []))
            yield m.down, s.ffn, s.hidden
        yield self.model.head, s.hidden, s.vocab


def fastest(calls, *, laps=5) -> dict:
    """Seconds of the fastest of `laps` laps of each call on one thread, the calls in turn, so that all meet the same.

    >>> seconds = fastest({"much": lambda: sum(range(100_000)), "little": lambda: sum(range(100))})
    >>> seconds["much"] > seconds["little"]
    True
    """
    found = {name: [] for name in calls}
    with torch.no_grad(), threads(1):
        for _ in range(laps + 1):
            for name, call in calls.items():
                start = time.process_time()
                call()
                found[name].append(time.process_time() - start)
    return {name: min(seconds[1:]) for name, seconds in found.items()}      # the first lap loads


def step(server, batch, *, context):
    """The call that makes one decode step of a batch whose sequences have `context` tokens, the new one included."""
    cache = server.cache(batch, context)
    new = torch.zeros(batch, 1, dtype=torch.long)

    def call():
        cache.length = context - 1
        return server.advance(new, cache)
    return call


def products(server, batch):
    """The call that makes all matrix products of one step and nothing else: no attention, no norms."""
    inputs = [(module, torch.ones(batch, 1, width, dtype=server.dtype)) for module, width, _ in server.matrices()]
    return lambda: [module(x) for module, x in inputs]


def cached_products(server, batch, n=1024):
    """The call that does as many FLOP as `products`, on one n × n matrix again and again, which stays in a cache."""
    matrix = nn.Linear(n, n, bias=False).requires_grad_(False)
    matrix = Packed(matrix, 32) if packs(32) else matrix
    times = round(sum(width * height for _, width, height in server.matrices()) / n**2)
    x = torch.ones(batch, 1, n)
    return lambda: [matrix(x) for _ in range(times)]


@dataclass(frozen=True)
class Machine:
    """What one thread does here: bytes/s read from memory, and FLOP/s of a square fp32 product."""

    bandwidth: float
    flops: float


def probes(size=2**28, n=512) -> tuple:
    """(calls to time, and how their seconds make a `Machine`): a long sum and a square product, no step of any model."""
    read, moved = reading(size, torch.device("cpu"))
    a, b = torch.randn(n, n), torch.randn(n, n)
    calls = {"read": read, "product": lambda: a @ b}
    return calls, lambda seconds: Machine(moved / seconds["read"], 2 * n**3 / seconds["product"])


def rounded(weight, bits, group=None):
    """`weight` rounded to integers of `bits` bits times a scale, one for each row or each `group` columns of a row.

    The scale is the largest magnitude ÷ (2^(bits − 1) − 1), so nothing is cut off. Raises ValueError for bits outside
    2 to 8 and for a group that does not divide the columns.

    >>> rounded(torch.tensor([[7.0, 1.2, -3.4, 0.0]]), 4)
    tensor([[ 7.,  1., -3.,  0.]])
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"bits={bits!r}: 2 to 8")
    group = group or weight.shape[-1]
    if weight.shape[-1] % group:
        raise ValueError(f"group={group!r} does not divide {weight.shape[-1]} columns")
    parts = weight.unflatten(-1, (-1, group))
    scale = parts.abs().amax(-1, keepdim=True).clamp_min(1e-30) / (2 ** (bits - 1) - 1)
    return ((parts / scale).round() * scale).flatten(-2)
