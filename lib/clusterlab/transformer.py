"""Decoder-only transformers: their weights one by one, and so their parameter count.

Everything else that depends on a model's shape (FLOP, memory, what tensor parallelism can cut) reads the table of
weights that :meth:`Transformer.layer_weights` and :meth:`Transformer.outer_weights` list.

Covered: learned or rotary positions, multi-head and grouped-query attention, plain and gated MLP, mixtures of
experts in every layer, tied or separate output head. Outside: latent attention, shared experts and dense first
layers (DeepSeek-V3), layers that alternate (Llama 4), encoders (T5).
"""

import dataclasses
import difflib
import functools
import importlib.resources
import tomllib
from typing import NamedTuple


class Weight(NamedTuple):
    """One weight tensor of the model."""
    name: str
    size: int            # numbers in one copy
    pieces: int = 1      # equal pieces that tensor parallelism can share out; 1: every rank holds it whole
    experts: int = 1     # copies, one for each expert
    matmul: bool = True  # a matrix that tokens are multiplied with: not a bias, a norm or a table looked up


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transformer:
    """The shape of a decoder-only transformer.

    ``layers`` blocks of width ``hidden``; ``heads`` query heads of ``head_dim`` (default hidden/heads) that share
    ``kv_heads`` key and value heads (default heads); an MLP of width ``ffn`` (default 4·hidden; a ``gated`` MLP has
    three matrices and no default, because 4·hidden would be half as large again); ``vocab`` rows of embedding,
    ``tied`` to the output head or not; ``positions`` learned position vectors (0: rotary or ALiBi). ``bias`` puts
    one on every linear layer except router and head; ``"qkv"`` on query, key and value only (Qwen2). ``norm="rms"``
    has one vector, ``"layer"`` two. ``qk_norm`` adds a norm of head_dim to queries and keys (Qwen3),
    ``embedding_norm`` one after the embedding (BLOOM). With ``experts`` > 1 every layer has that many MLPs and a
    router that sends each token to ``experts_per_token`` of them.

    Raises ValueError for counts that are not positive integers, for heads that kv_heads does not divide, and for a
    gated MLP without ``ffn``.

    >>> Transformer(layers=12, hidden=768, heads=12, vocab=50257, tied=True, bias=True, norm="layer",
    ...             positions=1024).parameters()  # GPT-2
    124439808
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    gated: bool = False
    tied: bool = False
    bias: bool | str = False
    norm: str = "rms"
    positions: int = 0
    experts: int = 1
    experts_per_token: int = 1
    qk_norm: bool = False
    embedding_norm: bool = False

    def __post_init__(self):
        if self.gated and self.ffn is None:
            raise ValueError("gated=True needs ffn: the default 4·hidden is that of an MLP with two matrices, "
                             "a gated one has three (Llama 2 7B: hidden 4096, ffn 11008)")
        if self.head_dim is None and self.heads and self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden} is not divisible by heads={self.heads}: give head_dim")
        defaults = {"kv_heads": self.heads, "head_dim": self.hidden // (self.heads or 1), "ffn": 4 * self.hidden}
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name in ("layers", "hidden", "heads", "vocab", "kv_heads", "head_dim", "ffn", "experts",
                     "experts_per_token", "positions"):
            value, least = getattr(self, name), int(name != "positions")
            if isinstance(value, bool) or value != int(value) or value < least:
                raise ValueError(f"{name}={value!r}: an integer of at least {least}")
            object.__setattr__(self, name, int(value))
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is not divisible by kv_heads={self.kv_heads}")
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token={self.experts_per_token} exceeds experts={self.experts}")
        if self.norm not in ("rms", "layer"):
            raise ValueError(f"norm={self.norm!r}: 'rms' or 'layer'")
        if self.bias not in (False, True, "qkv"):
            raise ValueError(f"bias={self.bias!r}: False, True or 'qkv'")

    def layer_weights(self):
        """The weights of one layer, in the order in which a token meets them."""
        h, f, d, experts = self.hidden, self.ffn, self.head_dim, self.experts
        query, key_value = self.heads * d, self.kv_heads * d

        def norm(name, width=h):
            return Weight(name, width * (2 if self.norm == "layer" else 1), matmul=False)

        def bias(name, width, pieces=1, copies=1):
            present = self.bias is True or (self.bias == "qkv" and name in ("query", "key", "value"))
            return [Weight(f"{name} bias", width, pieces, copies, matmul=False)] if present else []

        def mlp(name, width, pieces):
            return [Weight(name, h * f, f, experts), *bias(name, width, pieces, experts)]

        return [
            norm("attention norm"),
            Weight("query", h * query, self.heads), *bias("query", query, self.heads),
            Weight("key", h * key_value, self.kv_heads), *bias("key", key_value, self.kv_heads),
            Weight("value", h * key_value, self.kv_heads), *bias("value", key_value, self.kv_heads),
            *([norm("query norm", d), norm("key norm", d)] if self.qk_norm else []),
            # a row-parallel matrix sums over ranks, so its bias is added once and held by every rank
            Weight("output", query * h, self.heads), *bias("output", h),
            norm("mlp norm"),
            *([Weight("router", h * experts)] if experts > 1 else []),
            *(mlp("gate", f, f) if self.gated else []), *mlp("up", f, f), *mlp("down", h, 1),
        ]

    def outer_weights(self):
        """(weights before the layers, weights after them); a tied head is the embedding and not listed again."""
        h, norm = self.hidden, self.hidden * (2 if self.norm == "layer" else 1)
        before = [Weight("embedding", self.vocab * h, self.vocab, matmul=False)]
        if self.positions:
            before.append(Weight("positions", self.positions * h, matmul=False))
        if self.embedding_norm:
            before.append(Weight("embedding norm", norm, matmul=False))
        after = [Weight("final norm", norm, matmul=False)]
        if not self.tied:
            after.append(Weight("head", self.vocab * h, self.vocab))
        return before, after

    def layer_parameters(self, active=False):
        """Parameters of one layer; ``active`` counts only the experts that one token visits."""
        copies = self.experts_per_token if active else self.experts
        return sum(w.size * (copies if w.experts > 1 else 1) for w in self.layer_weights())

    def parameters(self):
        """All parameters: layers · layer + embedding (and positions) + final norm + head unless tied.

        For GPT this is 12·L·h²·(1 + 13/12h + (V + s)/12Lh) and the final norm's 2h (Narayanan et al. 2021,
        arXiv:2104.04473, eq. 2, which leaves the 2h out).

        Tools that differ on GPT-3 leave things out: Megatron-LM's theoretical_memory_usage.py the biases and the
        learned positions, EleutherAI's cookbook the biases too; where a checkpoint on the Hugging Face hub is larger
        by a few thousand numbers, it also stores rotary buffers, which are not trained.

        >>> model("gpt-3-175b").parameters(), model("llama-3.1-405b").parameters()
        (174604259328, 405853388800)
        """
        before, after = self.outer_weights()
        return self.layers * self.layer_parameters() + sum(w.size for w in before + after)

    def active_parameters(self):
        """Parameters that one token meets: as parameters(), with experts_per_token MLPs of each layer's experts.

        The router and the whole embedding are counted, as Mixtral's authors do (arXiv:2401.04088: 13B of 47B).

        >>> f'{model("mixtral-8x7b").active_parameters():,} of {model("mixtral-8x7b").parameters():,}'
        '12,879,925,248 of 46,702,792,704'
        """
        return self.parameters() - self.layers * (self.layer_parameters() - self.layer_parameters(active=True))


@functools.cache
def _registry():
    text = importlib.resources.files("clusterlab").joinpath("data/models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def models():
    """The names that model() knows, sorted.

    >>> "gpt-3-175b" in models()
    True
    """
    return sorted(_registry())


def model(name):
    """A published model by name; its source stands in data/models.toml. LookupError lists near names.

    >>> model("llama-2-13b").hidden
    5120
    >>> model("llama-13b-v2")
    Traceback (most recent call last):
    LookupError: no model 'llama-13b-v2'; near: 'llama-13b', ...
    """
    if name not in _registry():
        near = difflib.get_close_matches(str(name), models(), n=3, cutoff=0.4)
        raise LookupError(f"no model {name!r}; near: {', '.join(map(repr, near)) or 'none'}; models() lists all")
    return Transformer(**_registry()[name]["shape"])
