"""Serving on this machine: the cache changes nothing but time, what is packed computes the same, rounding is rounding."""

import pytest
import torch
from clusterlab.inference import decode_flops, kv_cache_bytes, weight_bytes
from clusterlab.run import serving
from clusterlab.run.serving import Cache, Server, cached_products, fastest, probes, products, rounded, step
from clusterlab.transformer import Transformer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

SHAPES = {"grouped": Transformer(layers=2, hidden=32, heads=4, kv_heads=2, vocab=40),
          "gated": Transformer(layers=3, hidden=24, heads=3, vocab=50, ffn=40, gated=True),
          "tied": Transformer(layers=1, hidden=16, heads=2, kv_heads=1, vocab=30, tied=True)}
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_with_a_cache_the_logits_are_the_models(name, packed):
    """The oracle is the model's own forward pass over all tokens, which knows no cache."""
    server = Server(SHAPES[name], packed=packed)
    plain = Server(SHAPES[name], packed=False).model                     # the same seed: the same weights
    with torch.no_grad():
        cache = server.cache(2, 6)
        server.advance(TOKENS[:, :3], cache)
        for end in (4, 5, 6):
            logits = server.advance(TOKENS[:, end - 1:end], cache)
            torch.testing.assert_close(logits, plain(TOKENS[:, :end])[:, -1], rtol=1e-4, atol=1e-5)
    assert cache.length == 6


def test_several_tokens_behind_a_filled_cache():
    server = Server(SHAPES["grouped"])
    with torch.no_grad():
        one, two = server.cache(2, 6), server.cache(2, 6)
        server.advance(TOKENS[:, :2], two)
        torch.testing.assert_close(server.advance(TOKENS, one), server.advance(TOKENS[:, 2:], two), rtol=1e-4, atol=1e-5)


def test_generation_is_greedy_and_needs_no_cache():
    server = Server(SHAPES["gated"])
    tokens, seconds = server.generate(TOKENS, 4)
    expected, row = [], TOKENS
    with torch.no_grad():
        for _ in range(4):
            expected.append(server.model(row)[:, -1].argmax(-1))
            row = torch.cat((row, expected[-1][:, None]), dim=1)
    assert torch.equal(tokens, torch.stack(expected, 1)) and seconds > 0
    assert torch.equal(server.generate(TOKENS, 4, cached=False)[0], tokens)


@pytest.mark.parametrize(("bits", "most"), [(16, 0.02), (8, 0.03)])
def test_fewer_bits_give_nearly_the_same(bits, most):
    shape = Transformer(layers=2, hidden=64, heads=4, kv_heads=2, vocab=32)
    full, few = Server(shape), Server(shape, bits=bits)
    with torch.no_grad():
        a, b = (s.advance(TOKENS, s.cache(2, 6)) for s in (full, few))
    error = ((a - b).norm() / a.norm()).item()
    assert 0 < error < most and b.dtype == torch.float32
    assert few.cache(2, 6).bytes == full.cache(2, 6).bytes // 2


def test_without_a_library_that_packs_the_layout_stays(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert [serving.packs(bits) for bits in (32, 16, 8)] == [False, False, True]
    for bits in (32, 16):
        server = Server(SHAPES["gated"], bits=bits)
        assert all(isinstance(module, torch.nn.Linear) for module, _, _ in server.matrices())
        with torch.no_grad():
            assert server.advance(TOKENS, server.cache(2, 6)).dtype == torch.float32
            cached_products(server, 2, n=16)()


def test_the_cache_has_the_bytes_of_the_formula():
    for shape in SHAPES.values():
        assert Cache(shape, 3, 7).bytes == kv_cache_bytes(shape, tokens=7, batch=3, bytes_per_value=4)
        assert Server(shape, bits=16).cache(3, 7).bytes == kv_cache_bytes(shape, tokens=7, batch=3)


@pytest.mark.parametrize("name", SHAPES)
def test_the_matrices_are_all_there_are(name):
    server = Server(SHAPES[name], packed=False)
    linear = [m for m in server.model.modules() if isinstance(m, torch.nn.Linear)]
    assert {id(m) for m, _, _ in server.matrices()} == {id(m) for m in linear}
    assert all((m.in_features, m.out_features) == (width, height) for m, width, height in server.matrices())
    read = weight_bytes(SHAPES[name], bytes_per_weight=4, embedding=False)     # norms beside them
    matrices = sum(4 * m.weight.numel() for m in linear)
    assert 0 <= read - matrices <= 4 * SHAPES[name].hidden * (2 * SHAPES[name].layers + 1)


@pytest.mark.parametrize("shape", [Transformer(layers=2, hidden=16, heads=4, vocab=24),
                                   Transformer(layers=3, hidden=12, heads=2, vocab=20, ffn=20, gated=True)])
def test_flops_are_what_torch_counts(shape):
    server = Server(shape, packed=False)
    cache = server.cache(3, 7)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):                        # the fused kernel is not counted
        server.advance(torch.zeros(3, 6, dtype=torch.long), cache)
        with FlopCounterMode(display=False) as counter:
            server.advance(torch.zeros(3, 1, dtype=torch.long), cache)
    assert decode_flops(shape, batch=3, context=7) == counter.get_total_flops()


def test_a_step_can_be_made_again_and_again():
    server = Server(SHAPES["grouped"])
    call = step(server, 3, context=5)
    with torch.no_grad():
        assert torch.equal(call(), call()) and call().shape == (3, 40)
        assert [tuple(y.shape) for y in products(server, 3)()][-1] == (3, 1, 40)
    total = sum(width * height for _, width, height in server.matrices())
    with torch.no_grad():
        assert len(cached_products(server, 3, n=16)()) == round(total / 256)


def test_the_fastest_lap_is_told_and_the_first_left_out(monkeypatch):
    clock = iter([0, 1, 1, 10, 10, 15, 15, 22, 22, 26, 26, 35])               # laps of a: 1, 5, 4; of b: 9, 7, 9
    monkeypatch.setattr(serving.time, "process_time", lambda: next(clock))
    order = []
    assert fastest({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, laps=2) == {"a": 4, "b": 7}
    assert order == ["a", "b"] * 3


def test_probes_divide_work_by_seconds():
    calls, machine = probes(size=2**20, n=64)
    found = machine({"read": 0.5, "product": 0.25})
    assert found.flops == 2 * 64**3 / 0.25
    assert found.bandwidth == calls["read"]().item() * 4 / 0.5                 # it sums ones of four bytes
    assert calls["product"]().shape == (64, 64)


def test_rounding_keeps_to_the_grid_and_is_nearest():
    torch.manual_seed(0)
    weight = torch.randn(4, 64)
    for bits, group in ((8, None), (4, None), (4, 16), (3, 8)):
        width, levels = group or 64, 2 ** (bits - 1) - 1
        for part, near in zip(weight.reshape(-1, width), rounded(weight, bits, group).reshape(-1, width), strict=True):
            grid = torch.arange(-levels, levels + 1) * (part.abs().max() / levels)
            nearest = grid[(part[:, None] - grid).abs().argmin(1)]
            torch.testing.assert_close(near, nearest)
    assert torch.equal(rounded(torch.zeros(1, 4), 4), torch.zeros(1, 4))


def test_what_cannot_be_served_is_named():
    with pytest.raises(ValueError, match="bits=4: one of 32, 16, 8"):
        Server(SHAPES["tied"], bits=4)
    for more in ({"bias": True}, {"positions": 8}, {"experts": 2}, {"qk_norm": True}, {"embedding_norm": True}):
        with pytest.raises(ValueError, match="serving takes rotary positions"):
            Server(Transformer(layers=1, hidden=8, heads=2, vocab=8, **more))
    for bits in (1, 9):
        with pytest.raises(ValueError, match=f"bits={bits}: 2 to 8"):
            rounded(torch.ones(1, 4), bits)
    with pytest.raises(ValueError, match="group=3 does not divide 4 columns"):
        rounded(torch.ones(1, 4), 4, group=3)
