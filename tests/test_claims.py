"""The claims page, recomputed: every key number from plain arithmetic, every verdict from a condition on them.

Nothing here calls clusterlab's formulas. A number must stand both in our reason and in the stored result of the cell
below it; published values (peaks, counts, measured latencies) are typed here again, from the sources the page names.
"""

import copy
import html
import json
import math
import re
import struct
from itertools import pairwise

import pytest
from clusterlab.widgets import questions
from conftest import ROOT

HOLDS, CONVENTION, NOT = "holds", "holds under a stated convention", "does not hold"
H100 = 81_559 * 2**20                       # bytes the driver reports
NVLINK = {1: 4 * 20e9, 2: 6 * 25e9, 3: 12 * 25e9, 4: 18 * 25e9, 5: 18 * 50e9}                # one direction
PCIE = {3: 16 * 8e9 * 128 / 130 / 8, 4: 16 * 16e9 * 128 / 130 / 8, 5: 16 * 32e9 * 128 / 130 / 8}
RING = 2 * 7 / 8 * 140e9 / NVLINK[4]
GPT3 = 6 * 174.6e9 * 300e9
HOURS = {name: GPT3 / peak / 3600 for name, peak in {"A100": 312e12, "H100": 989.4e12, "B200": 2250e12}.items()}

# Llama 2: grouped queries of 1,024 in the 70B model. Two norms a layer and one at the end.
LLAMA_70B = 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192) + 8192
LAYER = 2 * (4 * 5120**2 + 3 * 5120 * 13824) + 4 * 4096 * 5120   # FLOP a token, 13B at 4,096 tokens, whole attention
STORED = 16 * 5120 + 8 * 13824              # bytes a token and layer: eight of width h, four of the MLP's, 16 bits each
# a GPU of eight with ZeRO-3: 16 bytes a parameter, the gathered embedding and head, 40 layers of 8,192 tokens, and
# either the fp32 logits or one layer made again with two layers' gathered weights; the rest is below 3 %
STATES, TOKENS, GATHERED = 16 * 13.016e9 / 8, 2 * 4096, 2 * (4 * 5120**2 + 3 * 5120 * 13824)
KEPT = STATES + 2 * 2 * 32000 * 5120 + 40 * TOKENS * STORED + 4 * TOKENS * 32000
REDONE = STATES + 2 * 2 * 32000 * 5120 + 40 * TOKENS * 2 * 5120 + TOKENS * STORED + 2 * GATHERED


def half(x):
    """x as FP16 stores it."""
    return struct.unpack("e", struct.pack("e", x))[0]


# verdict, the condition that makes it so, {number as printed: its value in the unit printed}
EXPECTED = {
    "C01": (NOT, 3.35 not in (4.8, 8.0), {"3.35 TB/s": 5 * 1024 * 2 * 2619e6 / 8 / 1e12, "4.8 TB/s": 4.8, "8 TB/s": 8}),
    "C02": (HOLDS, 2 * 70e9 == 140e9, {
        "140 GB": 2 * 70, "130.4 GiB": 140e9 / 2**30, "138 GB": 2 * (LLAMA_70B + 2 * 32000 * 8192) / 1e9,
        "141.1 GB": 2 * (LLAMA_70B + 2 * 128256 * 8192) / 1e9}),
    "C03": (CONVENTION, 140e9 > H100 and round(140 / 3.35) == 42, {
        "41.8 ms": 140 / 3.35, "20.9 ms": 70 / 3.35, "5.22 ms": 17.5 / 3.35, "2.22 s": 140e9 / PCIE[5]}),
    "C04": (NOT, min(RING, 9 / 8 * 140e9 / NVLINK[4], 140e9 / NVLINK[4]) > 1.9 * 0.156, {
        "156 ms": 140 / 0.9, "544 ms": RING * 1e3, "350 ms": 9 / 8 * 140 / 0.45}),
    "C05": (NOT, 80 < min(141, 180, 186, 288), {"79.65 GiB": H100 / 2**30, "85.52 GB": H100 / 1e9, "141 GB": 141}),
    "C06": (CONVENTION, math.ceil(70e9 * 8 / H100) == 7 < math.ceil(70e9 * 16 / H100), {
        "560 GB": 70 * (2 + 2 + 4), "1.12 TB": 70e9 * (2 + 2 + 12) / 1e12, "14 GPUs": math.ceil(70e9 * 16 / H100),
        "5.5 GB": H100 / 1e9 - 560 / 7}),
    "C07": (CONVENTION, HOURS["B200"] < HOURS["H100"] < 100e3 < HOURS["A100"], {
        "3,637.5": GPT3 / 1e15 / 86400, "279,808": HOURS["A100"], "88,235": HOURS["H100"], "38,800": HOURS["B200"],
        "220,588": HOURS["H100"] / 0.4, "18 days": HOURS["H100"] / 0.4 / 512 / 24}),
    "C08": (NOT, 0.5 - 0.1 * 1 != 0.5 - 0.1 * 3, {"2.0": (2 + 2) / 2}),
    "C09": (NOT, 4 * 8 * 64 != 512, {"2,048": 4 * 8 * 64, "16": 512 / (4 * 8)}),
    "C10": (NOT, math.log10(92e-6 * 1755e6 / 34) < 4 and 650 / 34 < 200 / 2 and math.log10(100_000 / 1) == 5, {
        "5,844": 3.33e-6 * 1755e6, "161,460": 92e-6 * 1755e6, "4,749": 92e-6 * 1755e6 / 34}),
    "C11": (CONVENTION, 0.5 < 1 - REDONE / KEPT < 0.7 and 2 * 5120 / STORED < 0.1, {
        "33.0 %": 100 * 40 * LAYER / (3 * (40 * LAYER + 2 * 5120 * 32000)), "95 %": 100 * (1 - 2 * 5120 / STORED),
        "70 %": 100 * (1 - 34 / (34 + 5 * 96 * 2048 / 12288)),
        # GPT-3's attention core a layer over the step's FLOP, divided by the tokens and h: once, and three times
        "0.9 %": 100 * 4 * 2048 / (3 * (24 * 12288 + 4 * 2048 + 2 * 51200 / 96)),
        "2.7 %": 100 * 3 * 4 * 2048 / (3 * (24 * 12288 + 4 * 2048 + 2 * 51200 / 96))}),
    "C12": (CONVENTION, 16 * 13e9 > 90e9 and REDONE < 40e9 and 80e9 < KEPT, {
        "208 GB": 16 * 13, "92 GB": (KEPT / 1e9, 0.03), "34 GB": (REDONE / 1e9, 0.03),
        "3.36 GB": 40 * 8192 * 2 * 5120 / 1e9}),
    "C13": (CONVENTION, True, {"1.75": 2 * 7 / 8}),
    "C14": (NOT, RING < 0.55 * 1.09, {"14": 2 * 7, "17.5 GB": 140 / 8, "544 ms": RING * 1e3}),
    "C15": (NOT, (2 + 2 + 4 + 8) / (4 + 4 + 8) == 1 and 16 / 13 < 4, {
        "16 bytes": 4 + 4 + 8, "13": 1 + 4 + 4 + 4, "1.23": 16 / (1 + 4 + 4 + 4)}),
    "C16": (NOT, (2 + 4) * 70e9 == 420e9 < 16 * 70e9, {
        "280 GB": 4 * 70, "560 GB": 8 * 70, "140 GB": 2 * 70, "1.12 TB": 16 * 70e9 / 1e12}),
    "C17": (CONVENTION, half(1e-8) == 0 and half(1024e-8) > 0 and half(1 + half(1e-4)) == 1, {}),
    "C18": (CONVENTION, 56.3 / 21.3 < 3 and 56.3 / 5 > 10, {"2.6": 56.3 / 21.3, "19 %": 56.3 / 3, "11 %": 56.3 / 5}),
    "C19": (HOLDS, 16 * 20 * 28 == 8960, {"8,960": 16 * 20 * 28, "4.11 EFLOP/s": 8960 * 459e12 / 1e18}),
    "C20": (CONVENTION, 288 * 2**30 > 1.07 * 288e9, {"288 GiB": 36 * 8, "309 GB": 288 * 1.073741824}),
    "C21": (CONVENTION, 989.4 / 312 < 4 < 1978.9 / 312, {
        "3.17": 989.4 / 312, "1.64": 3.35 / 2.039, "450 GB/s": NVLINK[4] / 1e9}),
    "C22": (CONVENTION, 8 * NVLINK[5] == 14.4e12 / 2, {
        "1,440 GB": 8 * 180, "64 TB/s": 8 * 8, "14.4 TB/s": 2 * 8 * NVLINK[5] / 1e12, "3.6 TB/s": 4 * NVLINK[5] / 1e12}),
    "C23": (CONVENTION, round(72 * 2 * NVLINK[5] / 1e13) == 13 and 36 * NVLINK[5] < 130e12 / 4, {
        "129.6 TB/s": 72 * 2 * NVLINK[5] / 1e12, "32.4 TB/s": 36 * NVLINK[5] / 1e12}),
    "C24": (HOLDS, 100e9 / 16 * (2 + 14 / 25) < 32e9, {
        "37.5 TFLOP/s": 15e15 / 400 / 1e12, "30 %": 100 * 37.5 / 125, "100 GB": 100 / 16 * 16,
        "16 GB": 100 / 16 * (2 + 14 / 25)}),
    "C25": (CONVENTION, (945 / 0.03) / (415 / 0.015) < 1.025**6, {
        "2.28": 945 / 415, "14.7 %": 100 * (math.exp(math.log(945 / 415) / 6) - 1), "27,667": 415 / 0.015,
        "31,500": 945 / 0.03, "2.2 %": 100 * (math.exp(math.log(945 / 0.03 / (415 / 0.015)) / 6) - 1)}),
    "C26": (CONVENTION, 1.9 < 25e3 * 312e12 * 0.34 * 95 * 86400 / 1e25 < 2.4, {
        "2.2·10²⁵": 25e3 * 312e12 * 0.34 * 95 * 86400 / 1e25}),
    "C27": (NOT, 30.84e6 / 24_576 / 24 < 54 < 30.84e6 / 16_384 / 24, {
        "78 days": 30.84e6 / 16_384 / 24, "52": 30.84e6 / 24_576 / 24}),
    "C28": (NOT, 64 // 8 > 1 and 400e9 / 8 < PCIE[5] and 18 * 4 > 64, {
        "50 GB/s": 400 / 8, "63.02 GB/s": PCIE[5] / 1e9}),
    "C29": (NOT, NVLINK[4] / PCIE[5] < 10 and NVLINK[5] / PCIE[5] < 30 / 2, {
        "5.1": NVLINK[1] / PCIE[3], "9.5": NVLINK[3] / PCIE[4], "7.1": NVLINK[4] / PCIE[5], "14.3": NVLINK[5] / PCIE[5],
        "28.6": 2 * NVLINK[4] / PCIE[4]}),
    "C30": (CONVENTION, 10_000 / 72 * 0.01 < 2 < 10_000 / 8 * 0.01, {
        "1,250": 10_000 / 8, "12.5": 1250 / 100, "1.92 h": 24 / 12.5, "1.4": 10_000 / 72 / 100,
        "0.38 %": 100 * 419 / 54 / (16_384 / 8)}),
    "C31": (CONVENTION, 63 > 2 * 63 / 64 and 2 * 63 > 2, {"63": 63, "1.97": 2 * 63 / 64, "126 steps": 2 * 63}),
    "C32": (CONVENTION, (7 / 8 + 7 / 8) / (2 * 7 / 8) == 1, {
        "1.5": (2 * 7 / 8 + 7 / 8) / (2 * 7 / 8), "1.0": (7 / 8 + 7 / 8) / (2 * 7 / 8), "12": 8 * 3 / 2, "8.5": (8 * 2 + 1) / 2}),
}
NAMES = sorted(EXPECTED)


@pytest.fixture(scope="module")
def page():
    """{claim: (its widget's data, the cell's stored output)} of the page as it is stored."""
    cells = json.loads((ROOT / "book/reference/claims.ipynb").read_text("utf-8"))["cells"]
    found = {}
    for cell, after in pairwise(cells):
        key = re.fullmatch(r'verdict\("claims/(C\d\d)"\)', "".join(cell["source"]))
        if key:
            stored = "".join(cell["outputs"][0]["data"]["text/html"])
            data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', stored, re.DOTALL)[1])
            found[key[1]] = data, "".join("".join(output.get("text", "")) for output in after["outputs"])
    return found


def plain(text):
    return html.unescape(re.sub(r"<[^>]+>", "", text))


def printed(text, where):
    """Whether the number stands in `where`, and not as a part of another."""
    return re.search(rf"(?<![\d.,]){re.escape(text)}(?!\d)", where)


def rounds_to(text, value):
    """Whether `value` is the number at the head of `text`, to its last digit; (value, rel) allows more."""
    value, rel = value if isinstance(value, tuple) else (value, 0.0)
    digits = re.match(r"[\d,]+(\.\d+)?", text)
    allowed = 0.5 * 10.0 ** -(len(digits[1]) - 1 if digits[1] else 0) * (1 + 1e-9) + rel * value
    return abs(float(digits[0].replace(",", "")) - value) <= allowed


def wrong(data, output, expected):
    """What is wrong with one claim as it is shown, as a list of sentences."""
    verdict, so, numbers = expected
    why = plain(data["why"])
    shown = next(choice["text"] for choice in data["choices"] if choice["right"])
    found = [] if shown == verdict and so else [f"the page says {shown!r}, the arithmetic {verdict!r} ({so})"]
    found += [f"{text}: arithmetic gives {value}" for text, value in numbers.items() if not rounds_to(text, value)]
    found += [f"{text} stands not in the reason" for text in numbers if not printed(text, why + plain(data["prompt"]))]
    found += [f"{text} stands not in the cell's result" for text in numbers
              if not printed(re.match(r"[\d.,]+", text)[0].rstrip(".,"), output)]
    if not re.search(r'href="https://[\w.-]+\.\w+/', data["why"]):
        found.append("no source with an address")
    return found + ([] if output.strip() else ["the cell printed nothing"])


def test_all_32_are_there(page):
    assert set(page) == set(EXPECTED) == {f"C{n:02}" for n in range(1, 33)} == set(questions.load("claims"))


@pytest.mark.parametrize("name", NAMES)
def test_claim(name, page):
    data, output = page[name]
    assert data == questions.build(f"claims/{name}", "verdict"), "the page is older than claims.toml: execute it"
    assert wrong(data, output, EXPECTED[name]) == []


def test_fp16_in_the_cell(page):
    output = page["C17"][1]
    assert "gradient in FP16: 0.0\n" in output and "1.0e-08" in output and "0.0001: 1.0\n" in output


def test_the_verdicts_are_no_guess(page):
    """Each of the three verdicts is right for some claims, so that none can be chosen throughout."""
    assert {verdict: sum(e[0] == verdict for e in EXPECTED.values()) for verdict in (HOLDS, CONVENTION, NOT)} == {
        HOLDS: 3, CONVENTION: 17, NOT: 12}


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_verdict_is_noticed(name, page):
    data, output = copy.deepcopy(page[name])
    for choice in data["choices"]:
        choice["right"] = choice["text"] == next(v for v in (NOT, HOLDS) if v != EXPECTED[name][0])
    assert wrong(data, output, EXPECTED[name])


@pytest.mark.parametrize("name", [name for name in NAMES if EXPECTED[name][2]])
def test_a_changed_number_is_noticed(name, page):
    data, output = page[name]
    verdict, so, numbers = EXPECTED[name]
    for text, value in numbers.items():
        value = value[0] if isinstance(value, tuple) else value
        assert wrong(data, output, (verdict, so, {text: value * 1.1})), f"a changed constant behind {text}"
        bare = re.match(r"[\d.,]+", text)[0].rstrip(".,")
        other = re.sub(rf"(?<![\d.,]){re.escape(bare)}(?!\d)", "77777", output)
        assert wrong(data, other, EXPECTED[name]), f"{text} changed in the cell's result"


def test_a_missing_source_is_noticed(page):
    data, output = copy.deepcopy(page["C02"])
    data["why"] = plain(data["why"])
    assert wrong(data, output, EXPECTED["C02"]) == ["no source with an address"]
