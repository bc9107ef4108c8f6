"""Parameter counts against published totals, torch modules and other people's formulas."""

import dataclasses
import importlib.resources
import tomllib
from decimal import Decimal

import pytest
import torch
from clusterlab.transformer import Transformer, model, models
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_torch import Model

REGISTRY = tomllib.loads(importlib.resources.files("clusterlab").joinpath("data/models.toml").read_text())


def half_unit(number):
    return 0.5 * 10.0 ** Decimal(repr(number)).normalize().as_tuple().exponent


@pytest.mark.parametrize("name", models())
def test_count_is_the_published_one(name):
    entry, ours = REGISTRY[name], model(name)
    for key, count in (("parameters", ours.parameters()), ("active", ours.active_parameters())):
        stated = entry.get(key)
        if isinstance(stated, int):
            assert count == stated
        elif stated is not None:
            assert abs(count - stated) <= half_unit(stated), f"{key}: {count} is not {stated} as printed"
    assert entry["source"].strip() and entry["parameters"]


def test_most_totals_are_exact():
    assert sum(isinstance(entry["parameters"], int) for entry in REGISTRY.values()) >= 45


shapes = st.builds(
    lambda layers, width, kv, group, d, vocab, ffn, positions, experts, k, **flags: Transformer(
        layers=layers, hidden=width, heads=kv * group, kv_heads=kv, head_dim=d, vocab=vocab, ffn=ffn,
        positions=positions, experts=experts, experts_per_token=min(k, experts), **flags),
    layers=st.integers(1, 3), width=st.integers(1, 40), kv=st.integers(1, 4), group=st.integers(1, 4),
    d=st.integers(1, 16), vocab=st.integers(1, 99), ffn=st.integers(1, 60), positions=st.integers(0, 9),
    experts=st.integers(1, 4), k=st.integers(1, 4), gated=st.booleans(), tied=st.booleans(),
    bias=st.sampled_from([False, True, "qkv"]), norm=st.sampled_from(["rms", "layer"]), qk_norm=st.booleans(),
    embedding_norm=st.booleans())


@settings(max_examples=40, deadline=None)
@given(shapes)
def test_count_equals_torch(shape):
    with torch.device("meta"):
        built = Model(shape)
    total = sum(p.numel() for p in built.parameters())
    idle = sum(p.numel() for layer in built.layers for expert in list(layer.experts)[shape.experts_per_token:]
               for p in expert.parameters())
    assert shape.parameters() == total
    assert shape.active_parameters() == total - idle


def test_dense_models_are_wholly_active():
    assert model("llama-3.1-405b").active_parameters() == model("llama-3.1-405b").parameters()


def test_defaults():
    shape = Transformer(layers=2, hidden=64, heads=4, vocab=10)
    assert (shape.kv_heads, shape.head_dim, shape.ffn) == (4, 16, 256)


@pytest.mark.parametrize("change, word", [
    ({"gated": True}, "ffn"), ({"heads": 7}, "head_dim"), ({"kv_heads": 3}, "kv_heads"), ({"layers": 0}, "layers"),
    ({"hidden": 64.5, "head_dim": 16}, "hidden"), ({"experts_per_token": 2}, "experts_per_token"),
    ({"norm": "batch"}, "norm"), ({"bias": "all"}, "bias"), ({"positions": -1}, "positions"), ({"heads": 0}, "heads"),
    ({"vocab": True}, "vocab"),
])
def test_bad_shapes_are_named(change, word):
    good = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 10}
    Transformer(**good)
    with pytest.raises(ValueError, match=word):
        Transformer(**good | change)


def test_a_mlp_of_width_4h_may_be_gated_when_one_says_so():
    palm = model("palm-540b")
    assert palm.gated and palm.ffn == 4 * palm.hidden


def test_unknown_model_lists_near_names():
    with pytest.raises(LookupError, match="'gpt-3-175b'"):
        model("gpt3-175b")
    with pytest.raises(LookupError, match="models()"):
        model("nothing like it at all")


def test_models_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        model("gpt-2").layers = 3


def test_pieces_divide_sizes():
    for name in models():
        shape = model(name)
        before, after = shape.outer_weights()
        assert all(w.size % w.pieces == 0 for w in [*before, *after, *shape.layer_weights()])
