"""Other tools on the same input: they agree, or the mistake named accounts for the whole difference."""

import peers
import pytest

REASONS = peers.load()
ELSEWHERE = {id: name for name, ids in peers.OWN_TEST.items() for id in ids}


@pytest.mark.parametrize("id", sorted(peers.rows()))
def test_peer(id):
    if id in REASONS:
        assert id not in peers.REGISTRY, "compared, and yet listed as not compared"
        assert len(REASONS[id]) > 15, "say why it is not compared"
        return
    if id in ELSEWHERE:
        text = (peers.HERE / ELSEWHERE[id]).read_text()
        assert "peers.json" in text and (id in text or peers.rows()[id]["peer"].split()[0].split("/")[0] in text)
        return
    ways = peers.REGISTRY.get(id, [])
    assert ways, "neither compared nor listed in NOT_COMPARED with a reason"
    for function, rel, because in ways:
        pairs = function(peers.rows()[id])
        pairs = pairs if isinstance(pairs, list) else [pairs]
        assert pairs
        for theirs, ours in pairs:
            assert ours == pytest.approx(theirs, rel=rel), f"{id}: theirs {theirs}, ours {ours}. {because}"


def test_reasons_name_rows_that_exist():
    assert set(REASONS) <= set(peers.rows())
