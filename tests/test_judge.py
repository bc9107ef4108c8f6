"""The judge: what a student's function may do to the grading process is nothing, and what it says back is plain data."""

import os
import sys
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from clusterlab.run import allreduce, judge, step

pytestmark = pytest.mark.slow


class AlwaysEqual:
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __lt__ = __gt__ = __le__ = __ge__ = __eq__
    __hash__ = None


class Lying(float):
    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


def loops():
    while True:
        pass


def hogs():
    return len([0] * 10**10)                                        # 80 GB


def hogs_as_tensor():
    return torch.ones(5 << 30, dtype=torch.uint8).sum().item()


def floods():
    for _ in range(2_000):
        print("x" * 5_000)


def floods_past_python():
    while True:
        os.write(1, b"x" * 100_000)


@pytest.mark.parametrize("fn, says", [
    (lambda: 1 / 0, "raised ZeroDivisionError"),
    (lambda: sys.exit(0), "ended its process"),
    (lambda: os._exit(0), "ended its process"),
    (lambda: os.kill(os.getpid(), 9), "killed"),
    (loops, "did not finish within 1 s"),
    (lambda: time.sleep(60), "did not finish within 1 s"),
    (hogs, "raised MemoryError"),
    (hogs_as_tensor, "raised RuntimeError"),
    (floods, "printed or written"),
    (floods_past_python, "printed or written"),
    (lambda: AlwaysEqual(), "returned a AlwaysEqual"),
    (lambda: [0, {"a": AlwaysEqual()}], "returned a AlwaysEqual"),
    (lambda: {1, 2}, "returned a set"),
    (lambda: len, "returned a builtin"),
    (lambda: "x" * 2_000_000, "returned too much"),
    (len, "want a function"),
    (AlwaysEqual(), "want a function"),
    (None, "want a function"),
], ids=lambda value: getattr(value, "__name__", None))
def test_a_hostile_function_is_a_sentence(fn, says, capsys):
    with pytest.raises(judge.Fault, match=says) as caught:
        judge.answer(fn, seconds=1 if "within" in says else 10)
    first, *_ = str(caught.value).split("\n")
    assert len(first) < 300
    assert len(capsys.readouterr().out) <= judge.SHOWN


def test_a_notebook_shows_the_sentence_and_no_frames():
    assert judge.Fault("so")._render_traceback_() == ["so"]


def test_values_come_back_plain():
    back = judge.answer(lambda: (1, 2.5, "x", None, True, np.float64(0.5), np.arange(2), torch.tensor([1.0]), [(3,)]))
    assert back == [1, 2.5, "x", None, True, 0.5, [0, 1], [1.0], [[3]]]
    assert type(judge.answer(lambda: Lying(2))) is float and judge.answer(lambda: Lying(2)) != 3


def test_arguments_arrive_and_cases_stay_in_order():
    assert judge.answers(lambda a, b: a - b, [(3, 1), (1, 3)]) == [2, -2]


@pytest.mark.parametrize("kind, good, bad", [
    (float, [0, 1.5], ["1", True, None, [1.0], float("nan"), float("inf")]),
    (str, ["ring"], [1, None, ["ring"]]),
])
def test_the_kind_is_checked(kind, good, bad):
    assert judge.answers(lambda v: v, [(v,) for v in good], kind=kind) == good
    for value in bad:
        with pytest.raises(judge.Fault, match="want a number" if kind is float else "want text"):
            judge.answer(lambda v: v, value, kind=kind)


def test_what_a_student_prints_is_shown_in_part(capsys):
    judge.answer(lambda: print("here", "x" * 5_000))
    shown = capsys.readouterr()
    assert shown.out.startswith("[rank 0] here xxx") and len(shown.out) == judge.SHOWN and shown.err == ""


def test_warnings_do_not_reach_stderr(capfd):
    assert judge.answer(lambda: print("warning", file=sys.stderr)) is None
    assert capfd.readouterr().err == ""


# ---- all-reduce -----------------------------------------------------------------------------------------------------


def test_a_trial_tells_sum_bytes_and_steps():
    trial = judge.all_reduce_trial(allreduce.ring, 4, 1000)
    assert trial.fault == ""
    assert trial.bytes == [2 * 3 * 1000] * 4 and trial.steps == [6] * 4      # 2 (n-1)/n S, S = 4,000 B


def forgets_one(x):
    dist.all_reduce(x)
    if dist.get_rank() == 2:
        x[17] += 1


def test_a_wrong_sum_is_named_by_rank_and_element():
    trial = judge.all_reduce_trial(forgets_one, 3, 20)
    assert trial.fault.startswith("3 ranks, 20 elements: on rank 2 element 17 is")
    assert trial.bytes == [0, 0, 0]                                          # it did not go through `step`


def cuts(x):
    x.resize_(1)


def lies(x):
    torch.equal = lambda *_: True
    torch.Tensor.tolist = lambda self: AlwaysEqual()


def leaves(x):
    if dist.get_rank() == 1:
        os._exit(0)
    dist.barrier()


def waits(x):
    if dist.get_rank() == 0:
        step(recvs=[(x, 1)])


@pytest.mark.parametrize("fn, says", [
    (lies, "on 2 ranks raised TypeError: returned a AlwaysEqual"),
    (leaves, "on 2 ranks ended its process"),
    (waits, "on 2 ranks (did not finish|left ranks waiting)"),
    (cuts, "on 2 ranks raised ValueError: changed the shape"),
    (lambda x: x + "no", "on 2 ranks raised TypeError"),
])
def test_a_hostile_all_reduce_is_a_sentence(fn, says):
    with pytest.raises(judge.Fault, match=says):
        judge.all_reduce_trial(fn, 2, 8, seconds=2)


