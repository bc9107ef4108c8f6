"""The page "A training step": its figure computes what the library does, by keyboard, on a phone, without script."""

import gzip
import json
import random
import re
from dataclasses import asdict

import pytest
from clusterlab.iteration import SCHEDULES, unfold
from clusterlab.run import step_record
from clusterlab.units import format_seconds
from clusterlab.widgets import timeline
from clusterlab.workload import case, cases
from conftest import ROOT

PAGE = "book/explore/step"
CASES = [case(name) for name in cases()]
SIZES, SLOWS = list(timeline.BUCKETS.values()), list(timeline.SLOW.values())
SCRIPT = (ROOT / "lib/clusterlab/widgets/timeline.js").read_text("utf-8")
MODULE = "import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})))"
CHOOSE = """(choices) => choices.map(([values, overlap]) => {
  const box = document.querySelector(".clw-timeline"), selects = box.querySelectorAll("select");
  const check = box.querySelector("input");
  values.forEach((value, i) => { selects[i].value = value; });
  check.checked = overlap;
  check.dispatchEvent(new Event("change"));
  return ["seconds", "exposed", "bubble", "mfu", "ratio"].map((name) => Number(box.dataset[name]));
})"""


def numbers(found):
    return [found.seconds, found.exposed, found.bubble, found.mfu]


def same(here, there, scale):
    """Equal to 1e-9 of each number, or of the step where a number is the difference of such."""
    return all(abs(a - b) <= 1e-9 * max(abs(a), size) for a, b, size in zip(here, there, (0, scale, 1, 0), strict=True))


@pytest.fixture
def page(open_page):
    page = open_page(PAGE)
    page.locator(".clw-timeline").wait_for()
    yield page
    assert page.errors == [] and page.outside == []


def box(page):
    return page.locator(".clw-timeline")


@pytest.mark.browser
def test_every_choice_shows_what_the_library_says(page):
    rng = random.Random(12)
    picks = [(rng.randrange(4), rng.randrange(6), rng.randrange(5), rng.randrange(4), rng.random() < 0.5) for _ in range(200)]
    shown = page.evaluate(CHOOSE, [[list(pick[:4]), pick[4]] for pick in picks])
    for (one, schedule, bucket, slow, overlap), there in zip(picks, shown, strict=True):
        found = CASES[one].unfold(SCHEDULES[schedule], bucket=SIZES[bucket], overlap=overlap, slow={1: SLOWS[slow]})
        assert same(numbers(found), there[:4], found.seconds), (one, schedule, bucket, slow, overlap)
        assert there[4] == 0


@pytest.mark.browser
def test_the_page_s_function_is_the_library_s_on_any_work(page):
    rng = random.Random(13)
    asked, expected = [], []
    for _ in range(200):
        one, schedule = rng.choice(CASES), rng.choice(SCHEDULES)
        work = one.data if schedule == "data" else one.pipeline
        work = work.__class__(**asdict(work) | {
            "load": rng.random(), "latency": rng.random() * 1e-3, "per_byte": rng.random() * 1e-11, "send": rng.random() * 1e-2,
            "forward": tuple(rng.random() for _ in range(4)), "backward": tuple(rng.random() for _ in range(4))})
        choices = {"bucket": rng.choice([None, rng.uniform(2e6, 2e9)]), "overlap": rng.random() < 0.7,
                   "slow": {rng.randrange(4): rng.uniform(0.5, 3)}}
        asked.append([asdict(work), timeline.program(schedule), choices])
        expected.append(unfold(work, schedule, **choices))
    found = page.evaluate(f"""async ([source, asked]) => {{
        const {{ unfold }} = await {MODULE};
        return asked.map(([work, program, choices]) => {{
            const {{ seconds, exposed, bubble, mfu, spent }} = unfold(work, program, choices);
            return [[seconds, exposed, bubble, mfu], spent];
        }});
    }}""", [SCRIPT, asked])
    for here, (there, spent) in zip(expected, found, strict=True):
        assert same(numbers(here), there, here.seconds)
        for rank, parts in enumerate(spent):
            assert parts == pytest.approx(here.spent(rank), rel=1e-9, abs=1e-9 * here.seconds)


@pytest.mark.browser
def test_a_recorded_step_stands_beside_its_prediction(page):
    record = step_record.load()
    work = step_record.work_of(record)
    for row in record["rows"]:
        bucket = SIZES.index(row["bucket"]) if row["bucket"] else 4
        [shown] = page.evaluate(CHOOSE, [[[4, 0, bucket, SLOWS.index(row["slow"])], row["overlap"]]])
        found = unfold(work, bucket=row["bucket"], overlap=row["overlap"], slow={1: row["slow"]})
        assert shown[4] == pytest.approx(found.seconds / row["seconds"], rel=1e-9)
        assert f"Predicted over recorded: {found.seconds / row['seconds']:.2f}." in box(page).locator(".clw-say").inner_text()
    assert box(page).locator(".clw-rank").count() == 4
    assert box(page).locator("select").nth(1).locator("option:disabled").count() == 5
    page.evaluate(CHOOSE, [[[4, 0, 0, 1], True]])
    assert "Not recorded with this choice." in box(page).locator(".clw-say").inner_text()
    page.evaluate(CHOOSE, [[[0, 2, 2, 0], True]])
    assert box(page).locator(".clw-rank").count() == 4 and "Recorded" not in box(page).inner_text()


@pytest.mark.browser
def test_toggles_and_phases_by_keyboard(page):
    said, told = box(page).locator(".clw-say"), box(page).locator(".clw-phase")
    box(page).get_by_label("Overlap").focus()
    page.keyboard.press("Space")
    assert float(box(page).get_attribute("data-exposed")) == pytest.approx(CASES[0].unfold(bucket=25e6, overlap=False).exposed)
    page.keyboard.press("Space")
    before = said.inner_text()
    for label, press in (("Bucket", "ArrowUp"), ("Rank 1", "ArrowDown"), ("Schedule", "ArrowDown"), ("Model and cluster", "ArrowDown")):
        box(page).get_by_label(label).focus()
        page.keyboard.press(press)
        assert said.inner_text() != before, label
        before = said.inner_text()
    found = CASES[1].unfold("gpipe", bucket=5e6, slow={1: 1.05})
    assert float(box(page).get_attribute("data-seconds")) == pytest.approx(found.seconds, rel=1e-9)
    assert told.inner_text() == "All phases."
    box(page).get_by_role("button", name="Next phase").focus()
    seen = []
    for _ in range(7):
        page.keyboard.press("Enter")
        seen.append(told.inner_text().split(".")[0])
    assert seen == ["1 of 5: Load", "2 of 5: Forward", "3 of 5: Backward", "4 of 5: Sum of the gradients"] + ["5 of 5: Optimizer"] * 3
    assert box(page).locator(".clw-rank i:not(.clw-dim)").count() == 4
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert told.inner_text().startswith("4 of 5")
    for press, says in (("ArrowLeft", "3 of 5"), ("ArrowRight", "4 of 5"), ("End", "5 of 5"), ("Home", "All phases."), ("ArrowLeft", "All phases."),
                        ("Control+ArrowRight", "All phases."), ("End", "5 of 5"), ("ArrowRight", "5 of 5"), ("ArrowLeft", "4 of 5")):
        page.keyboard.press(press)
        assert told.inner_text().startswith(says), press
    box(page).get_by_role("button", name="Play").focus()
    page.keyboard.press("Enter")
    assert told.inner_text().startswith("5 of 5") and box(page).get_by_role("button", name="Play").count() == 1
    page.keyboard.press("Enter")                              # from the start
    assert told.inner_text().startswith("1 of 5")
    page.keyboard.press("Enter")
    assert box(page).get_by_role("button", name="Play").count() == 1


@pytest.mark.browser
def test_the_slow_rank_s_task_is_answered_with_what_is_shown(page):
    shown = []
    for slow in (0, 2):
        page.evaluate(CHOOSE, [[[2, 0, 2, slow], True]])
        shown.append(float(re.match(r"Step ([\d.]+) s,", box(page).locator(".clw-say").inner_text())[1]))
    steps = [CASES[2].unfold(bucket=25e6, slow={1: factor}).seconds for factor in (1, 1.2)]
    assert shown[1] / shown[0] - 1 == pytest.approx(steps[1] / steps[0] - 1, rel=0.02)  # accepted: 5 %


@pytest.mark.browser
def test_each_rank_s_parts_and_all_events_are_text(page):
    page.evaluate(CHOOSE, [[[0, 0, 4, 2], True]])
    found = CASES[0].unfold(slow={1: 1.2})
    rows = box(page).locator("[aria-label^='Where'] tbody tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows] == ["0", "1", "2", "3"]
    assert float(rows[0].split("\t")[4].split()[0]) == pytest.approx(1e3 * found.spent(0)["waiting"], rel=5e-3)
    box(page).get_by_text("All events as a table").click()
    lines = [row.split("\t") for row in box(page).locator("[aria-label='All events'] tbody tr").all_inner_texts()]
    assert [line[1] for line in lines if line[0] == "1"] == ["load 0", "forward 0", "loss 0", "backward 0", "optimizer 0", "sync 0"]
    marks = box(page).locator(".clw-rank").nth(1).locator("i")
    widths = marks.evaluate_all("all => all.map((i) => parseFloat(i.style.width))")
    events = sorted((e for e in found.events if e.rank == 1), key=lambda e: e.kind == "sync")
    assert widths == pytest.approx([100 * (e.end - e.start) / found.seconds for e in events], abs=1e-3)


@pytest.mark.browser
def test_without_script_it_is_tables(open_page):
    page = open_page(PAGE, js=False)
    text = page.locator("[data-widget=timeline]").text_content()
    for found in (CASES[1].unfold(bucket=1e6), CASES[3].unfold("zb-v", bucket=25e6)):
        assert format_seconds(found.seconds) in text and format_seconds(found.exposed) in text
    assert page.locator("[data-widget=timeline] details").count() == 2 * len(CASES) + 2


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_accessible_in_each_state(open_page, axe, dark):
    page = open_page(PAGE, dark=dark)
    box(page).wait_for()
    assert axe(page) == []
    page.evaluate(CHOOSE, [[[4, 0, 0, 2], True]])
    box(page).get_by_role("button", name="Next phase").click()
    box(page).get_by_text("All events as a table").click()
    page.wait_for_timeout(400)
    assert axe(page) == []


@pytest.mark.browser
def test_narrow_and_still(open_page):
    page = open_page(PAGE, width=360)
    box(page).wait_for()
    for choice in ([0, 5, 0, 0], [2, 0, 4, 3], [4, 0, 1, 2]):
        page.evaluate(CHOOSE, [[choice, True]])
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert box(page).evaluate("el => el.scrollWidth <= el.clientWidth")
    page.emulate_media(reduced_motion="reduce")
    assert box(page).locator(".clw-rank i").first.evaluate("el => getComputedStyle(el).transitionDuration") == "0s"


def test_the_page_is_light():
    widget = timeline.timeline("step/timeline", recorded=step_record.shown(step_record.load()))
    html = widget._repr_mimebundle_()[0]["text/html"]
    data = re.search(r'<script type="application/json">(.*)</script>', html, re.DOTALL)[1]
    assert json.loads(data) == json.loads(json.dumps(widget.data))
    assert len(gzip.compress(data.encode())) < 60_000
    assert len(gzip.compress(SCRIPT.encode())) < 10_000


def test_a_program_holds_every_instruction_once():
    for schedule in SCHEDULES[1:]:
        made = timeline.program(schedule)
        kinds = "FBW" if made["split"] else "FB"
        wanted = sorted(f"{kind}{chunk}{k}" for kind in kinds for chunk in range(made["chunks"]) for k in range(8))
        assert [sorted(stage.split()) for stage in made["programs"]] == [wanted] * 4
