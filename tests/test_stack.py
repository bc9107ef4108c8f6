"""The map of the software stack: complete, pointing downwards, sourced."""

import re

import pytest
from clusterlab import stack

NAMED = """PyTorch|JAX|DDP|FSDP|DeepSpeed|Megatron-LM|Accelerate|Ray|Kubernetes|Slurm|NCCL|RCCL|MPI|ROCm|CUDA|XLA|
torchrun""".replace("\n", "").split("|")


def test_every_tool_is_there_once():
    assert sorted(tool.name for tool in stack.tools()) == sorted(NAMED)


def test_layers_stand_from_the_cluster_down_and_none_is_empty():
    keys = [layer.key for layer in stack.layers()]
    assert keys == ["allocate", "launch", "divide", "define", "compile", "communicate", "drive"]
    assert all(stack.tools(key) for key in keys)
    assert [tool.layer for tool in stack.tools()] == sorted((tool.layer for tool in stack.tools()), key=keys.index)
    assert all(layer.question.endswith("?") and layer.ask for layer in stack.layers())


@pytest.mark.parametrize("tool", stack.tools(), ids=lambda tool: tool.name)
def test_a_tool_says_what_it_solves_and_what_not_and_where_that_stands(tool):
    assert len(tool.solves) > 30 and tool.limits and tool.solves != tool.limits
    assert "https://" in tool.source and re.fullmatch(r"20\d\d-\d\d", tool.date)
    assert not tool.solves.endswith(".") and not tool.limits.endswith(".")


@pytest.mark.parametrize("tool", stack.tools(), ids=lambda tool: tool.name)
def test_one_speaks_to_tools_of_the_same_layer_or_below(tool):
    keys = [layer.key for layer in stack.layers()]
    assert set(tool.speaks) <= set(NAMED) - {tool.name}
    assert all(keys.index(stack.tool(name).layer) >= keys.index(tool.layer) for name in tool.speaks)
    assert bool(tool.speaks) == (tool.layer != "drive"), "only the device's own layer speaks to no other"


def test_nobody_speaks_in_a_circle():
    left = {tool.name: set(tool.speaks) for tool in stack.tools()}
    while left:
        ends = {name for name, speaks in left.items() if not speaks & set(left)}
        assert ends, left
        left = {name: speaks for name, speaks in left.items() if name not in ends}


def test_ways_through_the_stack():
    assert stack.path("Slurm", "NCCL") == ("Slurm", "torchrun", "PyTorch", "NCCL")
    assert stack.path("Kubernetes", "RCCL")[-2] == "PyTorch"
    assert stack.path("JAX", "CUDA") == ("JAX", "XLA", "CUDA")
    assert stack.path("CUDA", "CUDA") == ("CUDA",) and stack.path("CUDA", "Slurm") == ()
    assert all(stack.path(top.name, "CUDA") for top in stack.tools("allocate"))


def test_what_restarts_is_not_what_reports():
    """The table's own answer to the page's question: launchers restart, NCCL and PyTorch do not."""
    assert all(re.search(r"restarts|starts the workers .* starts them again", tool.solves) for tool in stack.tools("launch"))
    assert "restarts none" in stack.tool("NCCL").limits and "not started again" in stack.tool("PyTorch").limits


@pytest.mark.parametrize("call, words", [
    (lambda: stack.tools("network"), "allocate, launch"), (lambda: stack.tool("Slrum"), "Slurm"),
    (lambda: stack.path("Slurm", "NCLC"), "NCCL"), (lambda: stack.path("torch", "NCCL"), "PyTorch"),
])
def test_unknown_names_are_told(call, words):
    with pytest.raises(LookupError, match=words):
        call()
