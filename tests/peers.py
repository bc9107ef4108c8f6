"""What other tools answer on the same input, beside ours.

A row of ``fixtures/peers.json`` is one call of another tool. A module ``peers_<topic>.py`` compares it:

    @compares("v001", because="leaves out biases")
    def parameters(row):
        return theirs + what_they_leave_out, ours          # or a list of such pairs

Where a tool is wrong or counts otherwise, ``because`` says so and the function undoes exactly that, so that the rest
must agree. Rows that are not compared stand with a reason in the module's ``NOT_COMPARED``; rows that a test file of
their own compares, in ``OWN_TEST`` below.
"""

import functools
import importlib
import json
import pathlib

HERE = pathlib.Path(__file__).parent
REGISTRY = {}


@functools.cache
def rows():
    """The rows of peers.json by id."""
    return {row["id"]: row for row in json.loads((HERE / "fixtures" / "peers.json").read_text())}


def compares(*ids, because="", rel=1e-9):
    """Register a function that returns (theirs, ours) or a list of such pairs for the rows `ids`."""
    def register(function):
        for id in ids:
            if id not in rows():
                raise LookupError(f"no peer row {id!r}")
            REGISTRY.setdefault(id, []).append((function, rel, because))
        return function
    return register


def of(peer, function="", test=lambda row: True):
    """The ids of a tool's rows, in order."""
    found = [id for id, row in rows().items() if row["peer"] == peer and function in row["function"] and test(row)]
    if not found:
        raise LookupError(f"no rows of {peer!r} with {function!r}")
    return found


OWN_TEST = {
    "test_nccl.py": of("NCCL"),
    "test_peers_collectives.py": [*of("ASTRA-sim analytical (congestion-unaware)"), *of("calculon", "Network.time"),
                                  *of("stas00/ml-engineering", "busbw"), "v250", "v251", "v253"],
}


def load():
    """Import every peers_<topic>.py; return {id: reason} of the rows not compared."""
    reasons = {}
    for path in sorted(HERE.glob("peers_*.py")):
        reasons |= getattr(importlib.import_module(path.stem), "NOT_COMPARED", {})
    return reasons
