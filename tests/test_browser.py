"""The widgets in the built page: over file://, every outside request refused, by keyboard, without script."""

import nbformat
import pytest
import yaml
from clusterlab.schedules import schedule
from clusterlab.widgets import questions
from clusterlab.widgets.forecast import forecast
from clusterlab.widgets.quiz import hunch, quiz, verdict
from clusterlab.widgets.standing import standing
from clusterlab.widgets.stepper import stepper
from conftest import ROOT, build_book

pytestmark = pytest.mark.browser


def config():
    """The book's own configuration, for a book that lies elsewhere."""
    own = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    own["bibtex_bibfiles"] = ["references.bib"]
    own["html"].pop("favicon", None)
    own["sphinx"]["local_extensions"] = {"bookext": str(ROOT / "tools")}
    for name in ("html_static_path", "templates_path"):
        own["sphinx"]["config"][name] = [str(ROOT / path) for path in own["sphinx"]["config"][name]]
    return yaml.safe_dump(own)


def shown(widget):
    """A code cell as the book stores it: the widget's HTML and text, no widget view."""
    bundle, _ = widget._repr_mimebundle_()
    data = {kind: bundle[kind] for kind in ("text/html", "text/plain")}
    return code("show()", nbformat.v4.new_output("execute_result", data=data, execution_count=1))


def code(source, output, tags=()):
    cell = nbformat.v4.new_code_cell(source, outputs=[output], execution_count=1)
    cell.metadata["tags"] = list(tags)
    if tags:
        cell.metadata["jupyter"] = {"outputs_hidden": True}
    return cell


def run(text):
    return code("run()", nbformat.v4.new_output("stream", name="stdout", text=text), ["hide-output"])


def demo():
    """One short lesson with a widget of every kind and sealed results behind a forecast and a claim."""
    text = nbformat.v4.new_markdown_cell
    return [
        text("# Demo\n\nHow long does an all-reduce take?"), shown(hunch("demo/faster")), shown(quiz("demo/before")),
        text("## Moving bytes\n\nEvery rank sends its part to the next."),
        shown(stepper("demo/ring-4", "Ring all-reduce of four ranks", 4, schedule("ring", 4))),
        shown(stepper("demo/hd-8", "Halving-doubling of eight ranks", 8, schedule("halving-doubling", 8))),
        shown(quiz("demo/bytes")), shown(quiz("demo/order")),
        text("## The run"), shown(forecast("demo/time", answer=0.48)), run("ring: 491 ms"),
        text('<details class="sealed"><summary>What came out</summary>\n\nThe ring *won*.\n\n</details>\n\n'
             "```{dropdown} And why\n:class-container: sealed\nBecause each port was busy.\n```\n\n"
             "```{dropdown} For the curious\nNot part of it.\n```"),
        shown(verdict("demo/claim")), run("claim: 0.27 s"),
        text("## Latency"), run("not sealed by the claim above"), shown(quiz("demo/steps")), shown(quiz("demo/grows")),
        text("## Where you stand"), shown(standing("demo")),
    ]


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The demo page, built with the book's own extension, style and template; hides the fixture of the whole book."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(questions, "FOLDER", ROOT / "tests" / "fixtures" / "questions")
        nbformat.write(nbformat.v4.new_notebook(cells=demo(), metadata={"kernelspec": {
            "name": "python3", "display_name": "Python 3", "language": "python"}}), out / "demo.ipynb")
    (out / "_toc.yml").write_text("format: jb-book\nroot: demo\n", "utf-8")
    (out / "references.bib").write_text("", "utf-8")
    (out / "_config.yml").write_text(config(), "utf-8")
    done = build_book(out, out)
    if done.returncode:
        pytest.fail(f"the demo page does not build:\n{(done.stdout + done.stderr)[-4000:]}")
    return out / "_build" / "html"


@pytest.fixture
def page(open_page):
    """The demo page once all widgets are ready; after the test, no error and no request outside."""
    page = open_page("demo")
    ready(page)
    yield page
    assert page.errors == []
    assert page.outside == []


def ready(page):
    page.wait_for_function("document.querySelectorAll('.clusterlab-widget:not([data-ready])').length === 0")


def widget(page, name):
    return page.locator(f'[data-key="demo/{name}"]')


def said(page, name):
    return widget(page, name).locator(".clw-say").inner_text()


def answer(page, name, *choices):
    for choice in choices:
        widget(page, name).locator(".clw-choice input").nth(choice).check()
    widget(page, name).locator("[type=submit]").click()


def number(page, name, text):
    widget(page, name).locator("input").fill(text)
    widget(page, name).locator("input").press("Enter")
    return said(page, name)


def kept(page):
    """What the page has stored of the reader's answers."""
    return page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('clusterlab:'))")


def opened(page):
    """Of all the sealed texts on the page, those that can be read."""
    texts = ["ring: 491 ms", "won", "Because each port was busy.", "claim: 0.27 s",
             "Not part of it.", "not sealed by the claim above"]
    return [text for text in texts if page.get_by_text(text, exact=True).is_visible()]


def test_every_widget_takes_the_place_of_its_fallback(page):
    assert page.locator(".clusterlab-widget").count() == 11
    assert page.locator("form.clw").count() == 8


def test_a_question_is_answered_by_keyboard_alone(page):
    first = widget(page, "steps").locator("input").first
    first.focus()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    assert said(page, "steps").startswith("Not so. That is reduce-scatter alone")
    assert "Look again at Latency" in said(page, "steps")
    page.keyboard.press("ArrowDown")
    assert said(page, "steps").startswith("Not so."), "moving between choices answers nothing"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert said(page, "steps").startswith("Right. n − 1 to add up")
    assert widget(page, "steps").get_by_role("group", name="How many steps").count() == 1


def test_an_unanswered_question_asks_for_a_choice(page):
    answer(page, "steps")
    assert said(page, "steps") == "Choose an answer first."


def test_multiple_names_what_is_wrong_and_how_much_is_missing(page):
    answer(page, "grows", 1, 2)
    assert "✗ does not belong: “the bytes each rank sends, without bound”" in said(page, "grows")
    assert "✓ belongs: “the time lost to latency”" in said(page, "grows")
    assert "1 more belongs here." in said(page, "grows")
    widget(page, "grows").locator("input").nth(1).uncheck()
    answer(page, "grows", 0)
    assert said(page, "grows").startswith("Right, all of them.")


def test_ordering_by_keyboard_keeps_the_focus(page):
    box = widget(page, "order")
    assert box.locator(".clw-item").all_inner_texts()[0] == "the sum is copied from rank to rank"
    box.get_by_role("button", name="Move down: the sum is copied").focus()
    page.keyboard.press("Enter")
    assert box.locator(".clw-unseen").inner_text() == "the sum is copied from rank to rank: place 2 of 3"
    page.keyboard.press("Enter")  # the focus is still on the same button
    page.keyboard.press("Enter")  # and at the end it does nothing
    box.locator("[type=submit]").click()
    assert said(page, "order").startswith("Right.")
    box.get_by_role("button", name="Move up: the sum is copied").click()
    box.locator("[type=submit]").click()
    assert "The first stands right. Place 2 is not for “the sum is copied from rank to rank”" in said(page, "order")


NUMBERS = [
    ("245", "Right. Read as 245 GB."), ("245 GB", "Right."), ("0.245 TB", "Right."),
    ("245,000 MB", "Read as 245,000 MB"),
    ("2.45e11 B", "Right."), ("2,45 × 10^11 B", "Right."), ("2.45·10¹¹ bytes", "Right."), ("228.2 gib", "Right."),
    ("245\u202f000 MB", "Right."), ("122.5", "Not so. Read as 122.5 GB. Reduce-scatter alone."),
    ("1.96 TB", "A part, not the whole array"), ("1960 GB", "A part, not the whole array"), ("300", "Too much."),
    ("245 MB", "Off by 1,000: a unit prefix."), ("245 GiB", "Off by the step between decimal and binary"),
    ("30.6", "bytes taken for bits"), ("-245", "Too little."), ("0", "Too little."),
]
NO_NUMBERS = [
    ("much", "Write a number and a unit"), ("245 ms", "“ms” is not a unit here"), ("", "Write a number"),
    ("245 <b>x</b>", "“<b>x</b>” is not a unit"), ("1,2,3", "cannot be read as one number"),
    ("1e999", "cannot be read"),
]


def test_numbers_as_readers_write_them(page):
    for text, expected in NUMBERS:
        assert expected in number(page, "bytes", text), text


def test_what_is_no_number_is_no_answer(page):
    for text, expected in NO_NUMBERS:
        assert expected in number(page, "bytes", text), text
        assert widget(page, "bytes").locator(".clw-say b").count() == 0
    assert kept(page) == []


def test_other_numbers_go_round(page):
    box = widget(page, "bytes")
    prompts = []
    for _ in range(4):
        prompts.append(box.locator(".clw-prompt").inner_text().split(" by ring")[0])
        box.get_by_role("button", name="Other numbers").click()
    assert prompts == ["8 ranks all-reduce 140 GB", "4 ranks all-reduce 24 GB", "16 ranks all-reduce 16 GB", prompts[0]]
    assert number(page, "bytes", "36").startswith("Right.")  # the second set
    assert number(page, "bytes", "245").startswith("Not so.")
    box.get_by_text("The way to the answer").click()
    assert box.get_by_text("36 GB.", exact=True).is_visible()


def test_committing_a_forecast_opens_what_it_seals_and_no_more(page):
    assert opened(page) == []
    assert "480" not in widget(page, "time").inner_text()
    assert "Write a number" in number(page, "time", "soon")
    assert opened(page) == []
    text = number(page, "time", "1,920 ms")
    assert text.startswith("You said 1,920 ms. The model says 480 ms. That is 4 times too much.")
    assert "The whole array in each step" in text
    assert opened(page) == ["ring: 491 ms", "won", "Because each port was busy."]
    widget(page, "time").locator("[type=submit]").click(force=True)  # committed is committed
    assert widget(page, "time").locator("input").get_attribute("readonly") is not None


WORDS = [
    ("480", "on the spot"), ("0.5 s", "4.2 % too high: close"), ("400", "17 % too low"), ("48", "10 times too little"),
    ("8 min", "1,000 times too much"), ("-3", "not a positive amount"),
]


def test_a_forecast_is_measured_in_words(page):
    for text, words in WORDS:
        assert f"That is {words}." in number(page, "time", text), text
        page.evaluate("localStorage.clear()")
        page.reload()
        ready(page)


def test_a_claim_opens_after_the_reader_s_verdict(page):
    assert "eighth" not in widget(page, "claim").inner_text()
    answer(page, "claim", 0)
    assert said(page, "claim").startswith("We say: it does not hold. In each step a rank sends an eighth")
    assert opened(page) == ["claim: 0.27 s"]


def test_progress_survives_a_reload_and_standing_tells_it(page):
    where = widget(page, "standing")
    assert "b. say when a ring loses: not answered yet" in where.inner_text()
    assert "1.75 arrays" not in where.inner_text()
    answer(page, "faster", 1)
    assert "end of the lesson" in said(page, "faster")
    answer(page, "before", 1)
    answer(page, "steps", 0)
    answer(page, "steps", 1)
    answer(page, "grows", 0, 2)
    number(page, "bytes", "245")
    number(page, "time", "0.5 s")
    for _ in range(2):
        text = where.inner_text()
        assert "builds on: 0 of 1 right; 1 not right yet. Read again: Links" in text
        assert "a. count the bytes each rank sends: 1 of 2 right; 1 not answered" in text
        assert "b. say when a ring loses: 2 of 2 right, 1 of them not at the first try. Read again: Latency" in text
        assert "Four ranks by ring: 4.2 % too high: close" in text
        assert "You chose: “a ring”. Every port is busy" in text
        assert "What came of it: The ring: its busiest rank sends 1.75 arrays" in text
        assert said(page, "steps").startswith("Right.")
        assert "ring: 491 ms" in opened(page)
        page.reload()
        ready(page)
    where.get_by_role("link", name="Latency").click()
    assert page.url.endswith("#latency")
    assert page.locator("#latency").count() == 1


def test_progress_travels_as_a_code(page):
    answer(page, "steps", 1)
    where = widget(page, "standing")
    where.get_by_text("Carry your progress").click()
    where.get_by_role("button", name="Copy my code").click()
    code = where.locator("textarea").input_value()
    where.get_by_role("button", name="Forget this page").click()
    assert kept(page) == ["clusterlab:demo/steps"], "asked once more first"
    with page.expect_navigation():
        where.get_by_role("button", name="Really forget").click()
    ready(page)
    assert said(page, "steps") == ""
    where.get_by_text("Carry your progress").click()
    for wrong in ("", "no code", "e30=", "bnVsbA=="):
        where.locator("textarea").fill(wrong)
        where.get_by_role("button", name="Use this code").click()
        assert where.get_by_text("This is no progress code of this book.").is_visible()
    where.locator("textarea").fill(f" {code}\n")
    with page.expect_navigation():
        where.get_by_role("button", name="Use this code").click()
    ready(page)
    assert said(page, "steps").startswith("Right.")


def test_an_answer_to_another_wording_is_forgotten(page):
    answer(page, "steps", 1)
    page.evaluate("""() => {
        const old = localStorage.getItem("clusterlab:demo/steps");
        localStorage.setItem("clusterlab:demo/steps", old.replace('"of":"', '"of":"x'));
        localStorage.setItem("clusterlab:demo/grows", "no JSON");
    }""")
    page.reload()
    ready(page)
    assert said(page, "steps") == said(page, "grows") == ""


def test_a_collective_is_stepped_by_keyboard(page):
    box = widget(page, "ring-4")
    status = box.locator("[role=status]")
    assert status.inner_text() == "6 steps. Start: each rank holds its own array."
    box.locator("[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    assert status.inner_text() == "Step 1 of 6. Every rank sends one chunk; what arrives is added."
    assert "0 → 1: chunk 3" in box.locator(".clw-moves").inner_text()
    cell = box.locator("tbody tr").nth(1).locator("td").nth(3)
    assert cell.inner_text().endswith("parts of rank 0, 1, just added from rank 0")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert status.inner_text().startswith("6 steps.")
    page.keyboard.press("End")
    assert status.inner_text().endswith("Now every rank holds the whole sum.")
    assert box.locator("td").get_by_text("complete sum").count() == 16
    page.keyboard.press("Home")
    box.get_by_role("button", name="Next").focus()
    page.keyboard.press("Enter")
    assert status.inner_text().startswith("Step 1")
    box.get_by_role("button", name="Play").click()
    box.get_by_text("Step 2 of 6.").wait_for()
    box.get_by_role("button", name="Pause").click()
    assert box.get_by_role("button", name="Play").count() == 1


def test_without_script_all_can_be_read_and_nothing_is_given_away(open_page):
    page = open_page("demo", js=False)
    assert page.locator(".clusterlab-widget").count() == 11
    assert page.locator("form").locator("visible=true").count() <= 1  # the theme's search
    assert opened(page) == []
    assert not page.get_by_text("The model says 480 ms").is_visible()
    page.get_by_text("Our number", exact=True).click()
    assert page.get_by_text("The model says 480 ms").is_visible()
    assert not page.get_by_text("to hand the sums round").is_visible()
    page.locator("summary").get_by_text("14", exact=True).click()
    assert page.get_by_text("to hand the sums round").is_visible()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_accessible_before_and_after_answers(open_page, axe, dark):
    page = open_page("demo", dark=dark)
    ready(page)
    assert axe(page) == []
    answer(page, "faster", 1)
    answer(page, "steps", 0)
    answer(page, "grows", 0, 2)
    answer(page, "claim", 2)
    number(page, "bytes", "122.5")
    number(page, "time", "480")
    widget(page, "ring-4").get_by_role("button", name="Next").click()
    widget(page, "standing").locator("summary").click()
    page.wait_for_timeout(400)  # opened seals fade in
    assert axe(page) == []


def test_a_narrow_screen_scrolls_down_only(open_page):
    page = open_page("demo", width=360)
    ready(page)
    answer(page, "steps", 0)
    number(page, "bytes", "122.5")
    number(page, "time", "1 s")
    widget(page, "hd-8").get_by_role("button", name="Next").click()
    widget(page, "standing").locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator(".clw").evaluate_all("all => all.filter((el) => el.scrollWidth > el.clientWidth).length") == 0


def test_served_over_http_it_is_the_same(open_page):
    page = open_page("demo", scheme="http")
    ready(page)
    answer(page, "steps", 1)
    assert said(page, "steps").startswith("Right.")
    assert page.errors == page.outside == []
