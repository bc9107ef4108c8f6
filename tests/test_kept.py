"""What is really kept: states by recipe, activations by formula and by name, recomputation that changes no bit."""

import dataclasses

import pytest
import torch
from clusterlab.activations import activation_bytes_per_layer
from clusterlab.compute import forward_breakdown, training_flops
from clusterlab.memory import MIXED_16, MIXED_18, MIXED_20, model_state_bytes
from clusterlab.run import kept
from clusterlab.transformer import Transformer

GPT = Transformer(layers=3, hidden=64, heads=4, vocab=32, norm="layer", bias=True, positions=64)
SEQ = 32


@pytest.mark.parametrize("gradients, recipe", [*zip(kept.GRADIENTS, (MIXED_16, MIXED_18, MIXED_20), strict=True)])
@pytest.mark.parametrize("tied", [False, True])
def test_states_are_those_of_the_recipe(gradients, recipe, tied):
    shape = dataclasses.replace(GPT, tied=tied)
    assert kept.states(shape, gradients=gradients, seq=SEQ) == model_state_bytes(shape.parameters(), recipe=recipe)


@pytest.fixture(scope="module")
def runs():
    return {mode: kept.recompute(GPT, mode, batch=2, seq=SEQ, laps=1) for mode in kept.MODES}


def test_kept_bytes_are_the_formula_and_what_it_leaves_out(runs):
    norms, mask = 3 * 2 * (2 * SEQ) * 2 * 2, 3 * SEQ * SEQ     # mean and deviation of each row; one causal mask a layer
    rest = {"none": norms + mask, "selective": norms, "full": 0}
    for mode, run in runs.items():
        formula = 3 * activation_bytes_per_layer(GPT, batch=2, seq=SEQ, recompute=mode)
        assert run.kept == formula + rest[mode]


def test_flop_are_counted_as_the_formulas_count_them(runs):
    bare = dataclasses.replace(GPT, vocab=1)
    logits = 3 * forward_breakdown(bare, batch=2, seq=SEQ)["logits"]
    none = training_flops(bare, batch=2, seq=SEQ) - logits
    core = forward_breakdown(bare, batch=2, seq=SEQ)["attention"]
    # torch stops when all that the core saved is there again: its second product, half of its FLOP, is not needed
    assert {mode: run.flops for mode, run in runs.items()} == {
        "none": none, "selective": none + core / 2, "full": none * 4 / 3}


def test_recomputing_changes_no_bit_of_a_gradient(runs):
    assert runs["selective"].same_gradients(runs["none"]) and runs["full"].same_gradients(runs["none"])
    other = dataclasses.replace(runs["none"], gradients=[g + 1 for g in runs["none"].gradients])
    assert not other.same_gradients(runs["none"])


def test_the_peak_of_full_is_the_inputs_and_one_layer(runs):
    row = 2 * (2 * SEQ * 64)
    layer = activation_bytes_per_layer(GPT, batch=2, seq=SEQ) + SEQ * SEQ
    inputs, gradients = 3 * row, 10 * row               # of the MLP's inside (4 rows wide) and the stream, at most
    assert inputs + layer - row < runs["full"].peak < inputs + layer - row + gradients
    assert runs["full"].peak < runs["selective"].peak < runs["none"].peak
    assert runs["none"].kept < runs["none"].peak < runs["none"].kept + gradients


def test_a_view_costs_nothing_and_a_shared_tensor_counts_once():
    x = torch.randn(8, 8, requires_grad=True)
    assert kept.kept_bytes(torch.nn.Identity(), x)[0] == 0

    class Twice(torch.nn.Module):
        def forward(self, x):
            return x * x.T                               # both factors are saved; one is a view of the other

    assert kept.kept_bytes(Twice(), x)[0] == 8 * 8 * 4
    assert kept.kept_bytes(torch.nn.Linear(8, 8), x)[0] == 8 * 8 * 4                # the input, not the weight


@pytest.mark.parametrize("call, word", [
    (lambda: kept.states(GPT, gradients="8 bits"), "gradients='8 bits'"),
    (lambda: kept.recompute(GPT, "some", seq=8), "mode='some'"),
    (lambda: kept.recompute(GPT, "selective", seq=8, attention="flash"), "attention='flash'"),
])
def test_bad_input(call, word):
    with pytest.raises(ValueError, match=word):
        call()
