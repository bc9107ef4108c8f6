"""The state of a training run as one rank holds it: taken, copied, put back.

Whoever forgets a part resumes another run: weights and moments (shards), but also where the loader stands, the
schedule, and the random number generators that dropout will draw from.
"""

import json
import random
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from clusterlab.run.device import accelerators


class CheckpointError(RuntimeError):
    """A checkpoint that can not be written or must not be used: which file, what was expected, what found."""


@dataclass
class State:
    """What a checkpoint holds. `parts` have state_dict() and load_state_dict(), of JSON values: loader, schedule."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    parts: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """A state at one step: tensors (this rank's shards), parts, this rank's random number generators."""

    step: int
    tensors: dict
    parts: dict
    rng: dict

    def bytes(self):
        """Bytes of this rank's tensors."""
        return sum(local(t).nbytes for t in flat(self.tensors).values())


def local(tensor):
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def flat(tree, name=""):
    """{dotted name: tensor} of a nested state dict, other values left out."""
    if torch.is_tensor(tree):
        return {name: tree}
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return {key: t for k, v in pairs for key, t in flat(v, f"{name}.{k}" if name else str(k)).items()}


def copied(tree):
    """The same nested state dict with tensors that nobody else writes to, in host memory."""
    if isinstance(tree, DTensor):
        return DTensor.from_local(local(tree).detach().to("cpu", copy=True), tree.device_mesh, tree.placements,
                                  run_check=False, shape=tree.shape, stride=tree.stride())
    if torch.is_tensor(tree):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    return [copied(value) for value in tree] if isinstance(tree, list | tuple) else tree


def snapshot(step, state, copy=False):
    """The state as it is now; with `copy`, in memory of its own, so that training may go on."""
    model, optimizer = get_state_dict(state.model, state.optimizer)
    tensors = {"model": model, "optimizer": optimizer}
    parts = json.loads(json.dumps({name: part.state_dict() for name, part in state.parts.items()}))
    return Snapshot(step, copied(tensors) if copy else tensors, parts, rng_state())


def restore(state, saved, *, rng=True):
    """Put a snapshot back into a state; without `rng` the random number generators stay as they are."""
    set_state_dict(state.model, state.optimizer, model_state_dict=saved.tensors["model"],
                   optim_state_dict=saved.tensors["optimizer"])
    for name, part in state.parts.items():
        if name not in saved.parts:
            raise CheckpointError(f"the checkpoint of step {saved.step} has no {name!r}, it has {sorted(saved.parts)}")
        part.load_state_dict(saved.parts[name])
    if rng:
        set_rng_state(saved.rng)


def rng_state():
    """The generators a training step may draw from, as JSON values."""
    kind, keys, *rest = np.random.get_state()
    state = {"python": random.getstate(), "numpy": [kind, keys.tolist(), *rest], "torch": _hex(torch.get_rng_state())}
    if accelerators():
        state["device"] = _hex(torch.get_device_module().get_rng_state())
    return state


def set_rng_state(state):
    """Put back what `rng_state` returned."""
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(_from_hex(state["torch"]))
    if "device" in state and accelerators():
        torch.get_device_module().set_rng_state(_from_hex(state["device"]))


def _hex(tensor):
    return tensor.numpy().tobytes().hex()


def _from_hex(text):
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
