"""Numbers and their proofs, published runs and the table beside a run: on entries made up here, without any page."""

import re

import pytest
from clusterlab import measured, numbers
from clusterlab.beside import beside, within


@pytest.fixture
def known(monkeypatch):
    """Put made-up entries into the registry."""
    def put(**entries):
        monkeypatch.setattr(numbers, "registry", lambda: {
            id: numbers.Number(id, "what it is", **entry) for id, entry in entries.items()})
    return put


@pytest.mark.parametrize(("display", "value", "half"), [
    ("544 ms", 0.544, 0.0005), ("1,024", 1024, 0.5), ("12,345.5 GB", 12345.5e9, 0.05e9), ("2 %", 0.02, 0.005),
    ("1.75×", 1.75, 0.005), ("16 GiB", 2**34, 2**29), ("6·10⁻³ s", 0.006, 0.0005), ("1.2·10²⁴ FLOP", 1.2e24, 0.05e24),
    ("−3.5 W", -3.5, 0.05), ("-3 W", -3, 0.5), ("14 steps", 14, 0.5), ("450 GB/s", 450e9, 0.5e9), (" 7 ", 7, 0.5),
    ("3 million GPU-hours", None, None), ("", None, None), ("about 3", None, None), ("3 parsecs/s", None, None),
    ("2.5 TFLOP/s", 2.5e12, 0.05e12), ("400 Gbit/s", 50e9, 0.0625e9), ("2 petaflop-days", 2 * 86400e15, 86400e15 / 2),
])
def test_a_display_is_its_value_give_or_take_half_a_digit(display, value, half):
    if value is None:
        with pytest.raises(ValueError, match=f"display {re.escape(repr(display))}"):
            numbers.parse(display)
    else:
        assert numbers.parse(display) == (pytest.approx(value, rel=1e-12), pytest.approx(half, rel=1e-12))


@pytest.mark.parametrize(("display", "expression", "good"), [
    ("0.33", "1 / 3", True), ("0.34", "1 / 3", False), ("0.33", "0.335", True), ("0.33", "0.325", True),
    ("0.33", "0.3351", False), ("0.33", "0.3249", False), ("333 ms", "1 / 3", True), ("333 s", "1 / 3", False),
    ("5.0", "5.05", True), ("−5.0", "0 - 5.05", True), ("5.0", "5.0501", False), ("1.2·10²⁴", "1.2e24 * (1 + 1e-15)", True),
    ("1234.5", "1234.55", True), ("1", "1.5 + 1e-12", True),
    ("1", "1.5 + 1e-8", False), ("1", "2.4", False), ("0.0010", "0.0010500001", False),
])
def test_a_display_must_be_the_proof_rounded(known, display, expression, good):
    known(x={"display": display, "expression": expression})
    if good:
        numbers.check("x")
    else:
        with pytest.raises(AssertionError, match=f"x: display '{display}' but"):
            numbers.check("x")


def test_a_published_value_has_nothing_to_compute(known):
    known(x={"display": "no number at all", "source": "a book"})
    numbers.check("x")
    assert numbers.number("x").value() is None


def test_two_files_may_not_define_one_number(monkeypatch, tmp_path):
    numbers.registry.cache_clear()
    monkeypatch.setattr(numbers, "FOLDER", tmp_path)
    for name in ("b", "a"):
        (tmp_path / f"{name}.toml").write_text(f'[of-{name}]\nsays = "×"\ndisplay = "1"\nsource = "s"\n', "utf-8")
    assert list(numbers.registry()) == ["of-a", "of-b"] and numbers.number("of-a").says == "×"
    numbers.registry.cache_clear()
    (tmp_path / "c.toml").write_text('[of-a]\nsays = "x"\ndisplay = "1"\n', "utf-8")
    with pytest.raises(ValueError, match=r"c\.toml.*of-a"):
        numbers.registry()


@pytest.fixture(autouse=True)
def _fresh():
    yield
    numbers.registry.cache_clear()


def test_proofs_are_shown_as_text_and_as_a_list(known):
    known(a={"display": "3 <B>", "expression": "1 < 2"}, b={"display": "4 B", "source": "X & Y, https://a.org/b(c). End"},
          c={"display": "5 B", "expression": "5", "source": "both"})
    shown = numbers.show("a", "b", "c")
    assert repr(shown) == "3 <B>: what it is. 1 < 2\n4 B: what it is. X & Y, https://a.org/b(c). End\n5 B: what it is. 5"
    assert shown._repr_html_() == (
        '<details class="clusterlab-proofs"><summary>Numbers on this page and their proofs (3)</summary>\n<ul>\n'
        '<li id="num-a"><strong>3 &lt;B&gt;</strong>: what it is. <code>1 &lt; 2</code></li>\n'
        '<li id="num-b"><strong>4 B</strong>: what it is. X &amp; Y, <a href="https://a.org/b(c">https://a.org/b(c</a>). '
        "End</li>\n"
        '<li id="num-c"><strong>5 B</strong>: what it is. <code>5</code> · both</li>\n</ul>\n</details>')


def test_what_is_said_is_text_and_not_markup(monkeypatch):
    monkeypatch.setattr(numbers, "registry", lambda: {"x": numbers.Number("x", "a < b", "1", source="http://a.org/x, y")})
    assert numbers.show("x")._repr_html_().split("\n")[2] == (
        '<li id="num-x"><strong>1</strong>: a &lt; b. <a href="http://a.org/x">http://a.org/x</a>, y</li>')


def test_a_band_is_closed():
    rows = {"ring": (1.0, 1.5), "tree": (2.0, 4.0)}
    assert within(rows, 1.5, 2.0) and not within(rows, 1.51, 2.0) and not within(rows, 1.5, 1.99)


def test_a_table_beside(capsys):
    beside("title", {"a": (1.0, 2.0), "long name": (3e-3, 1.5e-3)})
    assert capsys.readouterr().out.splitlines() == [
        "title      model    here  ratio", "a            1 s     2 s   2.00", "long name   3 ms  1.5 ms   0.50"]
    with pytest.raises(ValueError, match=r"row 'a' is \(1.0,\): want a pair \(model, here\)"):
        beside("title", {"a": (1.0,)})


def test_rows_of_a_run_by_column():
    run = measured.Run("x", "m", "w", "s", "d", ("size", "seconds", "busbw"), ((1, 2, 3), (4, 5, 6)))
    assert run.rows("busbw", "size") == [(3, 1), (6, 4)] and run.rows() == [(), ()] and run.note == ""
    with pytest.raises(LookupError, match="'x' has no column 'time'; it has size, seconds, busbw"):
        run.rows("size", "time")
    with pytest.raises(LookupError, match="no measurement 'h200x8-all-reduse'; near: h200x8-all-reduce"):
        measured.run("h200x8-all-reduse")
