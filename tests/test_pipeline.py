"""Pipeline schedules: every run obeys the dependencies, wastes no time it could use, and meets the closed forms."""

import json
import pathlib

import pytest
from clusterlab.pipeline import simulate
from hypothesis import given, settings
from hypothesis import strategies as st

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")
SECONDS = st.floats(0.05, 3.0)


def run(schedule, p, m, forward=1.0, backward=1.0, **kw):
    if schedule.startswith("zb"):
        kw.setdefault("weight_backward", 1.0)
    return simulate(schedule, stages=p, micro_batches=m, forward=forward, backward=backward, **kw)


def position(schedule, event, p):
    if schedule == "zb-v":
        return event.stage if event.chunk == 0 else 2 * p - 1 - event.stage
    return event.chunk * p + event.stage


@given(schedule=st.sampled_from(SCHEDULES), p=st.integers(1, 5), m=st.integers(1, 9), virtual=st.integers(2, 3),
       forward=SECONDS, backward=SECONDS, weights=SECONDS, send=st.sampled_from([0.0, 0.3]))
@settings(max_examples=60, deadline=None)
def test_every_run_is_a_schedule(schedule, p, m, virtual, forward, backward, weights, send):
    chunks = {"interleaved": virtual, "zb-v": 2}.get(schedule, 1)
    m = m * p if schedule == "interleaved" else m
    result = simulate(schedule, stages=p, micro_batches=m, forward=forward, backward=backward, weight_backward=weights,
                      virtual=chunks, send=send)
    kinds = "FBW" if schedule.startswith("zb") else "FB"
    seconds = {"F": forward, "B": backward + (0 if "W" in kinds else weights), "W": weights}
    when = {(e.kind, position(schedule, e, p), e.micro_batch): e for e in result.events}
    assert len(when) == len(result.events) == len(kinds) * p * chunks * m  # each instruction once
    assert {e.micro_batch for e in result.events} == set(range(m))
    previous = {}
    for event in result.events:  # in order of start
        at, k = position(schedule, event, p), event.micro_batch
        assert event.end - event.start == pytest.approx(seconds[event.kind] / chunks)
        needs = {"F": [("F", at - 1, k)], "B": [("F", at, k), ("B", at + 1, k)], "W": [("B", at, k)]}[event.kind]
        inputs = [when[need] for need in needs if need in when]
        earliest = max([other.end + send * (other.stage != event.stage) for other in inputs]
                       + [previous.get(event.stage, 0.0)])
        assert event.start == pytest.approx(earliest)  # as soon as stage and input are there
        previous[event.stage] = event.end
    work = m * (forward + backward + weights)
    assert result.makespan == pytest.approx(max(previous.values()))
    assert result.bubble_ratio == pytest.approx(result.makespan / work - 1, abs=1e-9)
    assert result.bubble_fraction == pytest.approx(1 - work / result.makespan, abs=1e-9)
    assert work * (1 - 1e-9) <= result.span <= result.makespan * (1 + 1e-9)
    for stage in range(p):
        own = [e for e in result.events if e.stage == stage]
        held = [sum(a.start <= t < when[kinds[-1], position(schedule, a, p), a.micro_batch].end
                    for a in own if a.kind == "F") for t in (e.start for e in own)]
        assert result.peak_in_flight[stage] == pytest.approx(max(held) / chunks)


@given(p=st.integers(1, 9), m=st.integers(1, 20), forward=SECONDS, backward=SECONDS)
@settings(max_examples=40, deadline=None)
def test_gpipe_and_1f1b(p, m, forward, backward):
    first, second = (run(name, p, m, forward, backward) for name in ("gpipe", "1f1b"))
    assert first.makespan == pytest.approx((m + p - 1) * (forward + backward))
    assert second.makespan == pytest.approx(first.makespan)
    assert first.bubble_ratio == pytest.approx((p - 1) / m)
    assert second.bubble_fraction == pytest.approx((p - 1) / (m + p - 1))
    assert first.peak_in_flight == (m,) * p
    assert second.peak_in_flight == tuple(min(p - i, m) for i in range(p))


@pytest.mark.parametrize("p, groups, virtual", [(1, 3, 2), (2, 1, 2), (4, 1, 3), (4, 2, 2), (4, 4, 4), (6, 2, 2)])
def test_interleaved(p, groups, virtual):
    m = p * groups
    result = run("interleaved", p, m, 1.0, 2.0, virtual=virtual)
    assert result.bubble_ratio == pytest.approx((p - 1) / (virtual * m))
    # Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.3: the first stage holds 1 + (p-1)/(pv) times as much
    most = p * (1 + (p - 1) / (p * virtual))
    assert result.peak_in_flight[0] == pytest.approx(min(most, m))
    plain = run("1f1b", p, m, 1.0, 2.0)
    assert run("interleaved", p, m, 1.0, 2.0, virtual=1) == plain
    assert run("interleaved", 4, 6, virtual=1) == run("1f1b", 4, 6)  # whole groups are needed for chunks alone


@given(p=st.integers(1, 8), extra=st.integers(0, 10), forward=SECONDS, backward=SECONDS, share=st.floats(0.05, 1.0))
@settings(max_examples=40, deadline=None)
def test_zb_h1(p, extra, forward, backward, share):
    """Table 2 of arXiv:2401.10241: bubble (p-1)(F+B-W), memory of p micro-batches."""
    weights, m = share * min(forward, backward), p + extra
    result = run("zb-h1", p, m, forward, backward, weight_backward=weights)
    bubble = (p - 1) * (forward + backward - weights)
    assert result.makespan == pytest.approx(m * (forward + backward + weights) + bubble)
    assert result.peak_in_flight == (p,) * p
    assert result.makespan <= run("1f1b", p, m, forward, backward + weights).makespan + 1e-9


@pytest.mark.parametrize("p", [1, 2, 4, 7])
def test_zb_v(p):
    for m in (2 * p - 1, 2 * p + 3):
        result = run("zb-v", p, m)
        assert result.span == pytest.approx(3 * m)  # no bubble between a stage's first and last instruction
        assert result.makespan == pytest.approx(3 * m + (p - 1) / 2)
        assert result.peak_in_flight == (p,) * p
    fewer = run("zb-v", p, p)
    assert fewer.makespan <= run("zb-h1", p, p).makespan + 1e-9 and max(fewer.peak_in_flight) <= p


def test_eight_stages_thirty_two_micro_batches():
    """1F1B is said to have the smaller bubble: both take 78 slots, 17.95 % of them idle; only the memory differs."""
    runs = [run(name, 8, 32) for name in ("gpipe", "1f1b")]
    assert [r.makespan for r in runs] == [78, 78]
    assert [round(100 * r.bubble_fraction, 2) for r in runs] == [17.95, 17.95]
    assert [r.peak_in_flight[0] for r in runs] == [32, 8]


def test_the_bubble_falls_with_the_number_of_micro_batches_and_not_with_their_size():
    small = run("1f1b", 8, 32).bubble_ratio
    assert run("1f1b", 8, 32, 5.0, 5.0).bubble_ratio == pytest.approx(small)  # five times as large, as many
    assert run("1f1b", 8, 64).bubble_ratio == pytest.approx(small / 2)


@given(forward=st.lists(SECONDS, min_size=1, max_size=6), m=st.integers(1, 9), send=st.floats(0, 1.0))
@settings(max_examples=30, deadline=None)
def test_gpipe_is_a_flow_shop(forward, m, send):
    """Equal jobs through unequal machines take the sum once and the slowest m-1 times more, each way."""
    p, backward = len(forward), [2 * one for one in reversed(forward)]
    result = run("gpipe", p, m, forward, backward, send=send)
    down, up = (sum(times) + (m - 1) * max(times) + (p - 1) * send for times in (forward, backward))
    assert result.makespan == pytest.approx(down + up)


def test_how_backward_is_split():
    whole = simulate("zb-h1", stages=3, micro_batches=5, forward=1, backward=2)
    assert whole == simulate("zb-h1", stages=3, micro_batches=5, forward=1, backward=1, weight_backward=1)
    joined = simulate("1f1b", stages=3, micro_batches=5, forward=1, backward=1, weight_backward=1)
    assert joined == simulate("1f1b", stages=3, micro_batches=5, forward=1, backward=2)
    assert {e.kind for e in joined.events} == {"F", "B"}


def test_llama_3_and_narayanan_print_the_ratio_of_ideal():
    rows = json.loads((pathlib.Path(__file__).parent / "fixtures" / "published.json").read_text())
    row = next(row for row in rows if row["id"] == "flops.nara.bubble")
    for p, m in ((4, 8), (8, 48), (1, 3)):
        printed = eval(row["value"], {"__builtins__": {}}, {"p": p, "m": m})
        assert run("1f1b", p, m).bubble_ratio == pytest.approx(printed)


def test_nothing_to_do_takes_no_time():
    result = simulate("1f1b", stages=2, micro_batches=2, forward=0, backward=0)
    assert (result.makespan, result.bubble_fraction, result.bubble_ratio) == (0, 0, 0)
    with pytest.raises(AttributeError):
        result.makespan = 1.0


@pytest.mark.parametrize("wrong, words", [
    ({"schedule": "gpip"}, "schedule='gpip'.*near: gpipe"), ({"schedule": "zb-h2"}, "near: zb-h1"),
    ({"stages": 0}, "stages=0"), ({"micro_batches": 0}, "micro_batches=0"), ({"micro_batches": 2.5}, "micro_batches=2.5"),
    ({"virtual": 2}, "virtual=2: 1f1b has one chunk"), ({"virtual": 0}, "virtual=0"),
    ({"schedule": "zb-v", "virtual": 3}, "virtual=3: zb-v has two"),
    ({"schedule": "interleaved", "virtual": 2, "micro_batches": 6}, "micro_batches=6: interleaved needs a multiple of"),
    ({"forward": -1}, "forward=-1"), ({"forward": [1, 2]}, "forward=.*each of 4 stages"), ({"send": -0.1}, "send=-0.1"),
    ({"backward": float("nan")}, "backward=nan"), ({"weight_backward": -2}, "weight_backward=-2"),
])
def test_bad_input_is_named(wrong, words):
    given = {"schedule": "1f1b", "stages": 4, "micro_batches": 8, "forward": 1, "backward": 2} | wrong
    with pytest.raises(ValueError, match=words):
        simulate(given.pop("schedule"), **given)
