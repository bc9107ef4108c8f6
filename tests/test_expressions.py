"""Expressions: they compute what Python computes over the library's names, and refuse the rest by name."""

import math
import types

import pytest
from clusterlab import collectives, expressions, units
from clusterlab.expressions import evaluate, fill, names_in
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(2, 10**6), st.floats(1, 1e15))
def test_arithmetic_is_python_s(ranks, size):
    assert evaluate("2 * (ranks - 1) / ranks * size", ranks=ranks, size=size) == 2 * (ranks - 1) / ranks * size


def test_names_of_the_library():
    assert evaluate("140*GB") == 140e9
    assert evaluate("units.GiB / GB") == 2**30 / 1e9
    assert evaluate("collectives.steps('ring', 8)") == evaluate("steps('ring', 8)") == 14
    assert evaluate("ceil(log2(n))", n=9) == 4
    assert evaluate("bytes_sent(\"ring\", size, ranks=8)", size=8.0) == collectives.bytes_sent("ring", 8.0, 8) == 14.0
    assert evaluate("round(1 / 3, 2) if 2 > 1 else [1, 2][0]") == 0.33


def test_given_values_hide_the_library():
    assert evaluate("GB + steps", GB=1, steps=2) == 3
    assert evaluate("abs", abs=5) == 5


def test_any_name_may_be_given():
    assert evaluate("text + template", text=1, template=2) == 3
    assert fill("{template} {text}", template=1, text=2) == "1 2"


def test_names_in_shows_a_literal():
    assert names_in("2 * GB + f(GB)") == ["GB", "f"]
    assert names_in("[1, 2.5, 'GB', -3]") == []


@pytest.mark.parametrize("text", [
    "x = 1", "import os", "lambda: 1", "[i for i in (1, 2)]", "{1: 2}", "(y := 2)", "1 +", "units.__name__", "f'{GB}'",
    "()._x", "True and False", "print(*[1])", "'a'.__class__",
])
def test_refused(text):
    with pytest.raises(ValueError, match="expression") as caught:
        evaluate(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["__import__('os')", "open('x')", "eval('1')", "_parse", "math.pi"])
def test_no_builtins_and_nothing_private(text):
    with pytest.raises(LookupError, match="unknown name") as caught:
        evaluate(text)
    assert repr(text) in str(caught.value)


def test_near_names():
    with pytest.raises(LookupError, match="bytes_sent"):
        evaluate("bytes_send('ring', 1, 2)")
    with pytest.raises(LookupError, match="unknown name 'rank'.*ranks"):
        evaluate("rank + 1", ranks=8)
    with pytest.raises(LookupError, match="given: nothing"):
        evaluate("qqqqqqqq")


def test_a_failure_names_the_expression_and_keeps_its_cause():
    with pytest.raises(ValueError, match=r"'1 / \(ranks - 8\)'.*ZeroDivisionError") as caught:
        evaluate("1 / (ranks - 8)", ranks=8)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ValueError, match="steps"):
        evaluate("steps('rings', 8)")


def test_a_name_of_two_modules_is_refused(monkeypatch):
    monkeypatch.setattr(expressions, "_vocabulary", lambda: {"twice": {"memory": 1, "compute": 2}})
    with pytest.raises(LookupError, match=r"memory\.twice, compute\.twice"):
        evaluate("twice")


def test_the_vocabulary_is_public_and_ours():
    found = expressions._vocabulary()
    assert {"all_reduce_seconds", "link", "accelerator", "MIXED_16"} <= set(found)
    assert not {"np", "dataclass", "Path", "functools", "annotations"} & set(found)
    assert not [name for name in found if name.startswith("_")]
    assert "expressions" not in {module for owners in found.values() for module in owners}


@pytest.mark.parametrize(("template", "text"), [
    ("{ranks} ranks", "8 ranks"), ("{1/3}", "0.3333"), ("{2.0**40}", "1099511627776"), ("{12345.678}", "12350"),
    ("{1/3:.1%} {{kept}}", "33.3% {kept}"), ("{format_seconds(0.5444)}", "544 ms"), ("{-1.5}", "-1.5"),
    ("{1.5e-7}", "1.5e-07"), ("{ranks * 1.0}", "8"), ("{1e300}", "1e+300"), ("none", "none"),
    ("{5e14+0.5}", "500000000000000"), ("{1e15-1}", "999999999999999"), ("{1e15}", "1e+15"), ("{1e15+0.5}", "1e+15"),
])
def test_fill(template, text):
    assert fill(template, ranks=8) == text


def test_what_is_not_allowed_is_named():
    with pytest.raises(ValueError, match="Lambda, .*use calls"):
        evaluate("lambda: 1")


def test_a_callable_that_says_no_module_is_not_ours():
    module = types.ModuleType("ours")
    module.size, module.upper = 3.0, WithoutModule()
    assert expressions._public(module) == {"size": 3.0}


class WithoutModule:
    def __call__(self):
        pass

    def __getattribute__(self, name):
        if name == "__module__":
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_a_broken_template_names_itself():
    for template in ("{ranks", "}", "{ranks!r}"):
        with pytest.raises(ValueError, match="template"):
            fill(template, ranks=8)


@given(st.floats(1e-4, 1e14))
def test_a_number_is_written_to_four_digits_or_whole(value):
    shown = float(fill("{value}", value=value))
    assert math.isclose(shown, value, rel_tol=5e-4)
    if value == int(value):
        assert shown == value


def test_units_come_first():
    assert evaluate("GB") is units.GB
