"""Number formats from their bits: range, spacing, rounding, where a running sum sticks, and scales shared by blocks.

A floating-point number of E exponent bits and M stored significand bits is ±1.m · 2^(e − bias), or below the smallest
normal number ±0.m · 2^(1 − bias). Everything here follows from E, M, the bias and what the top exponent is used for;
nothing asks torch. Sources: IEEE 754-2019, table 3.5 (fp32, fp16); Kalamkar et al. 2019, arXiv:1905.12322 (bf16);
NVIDIA A100 architecture white paper (tf32); Micikevicius et al. 2022, arXiv:2209.05433, table 1 (fp8); OCP
Microscaling Formats (MX) specification v1.0, section 5.3 (fp4, e8m0), https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf.
"""

import difflib
import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: `exponent` and stored `significand` bits, and what its top patterns mean.

    `top` is "ieee" (the all-ones exponent holds infinities and NaN), "nan" (only the all-ones pattern is NaN) or
    "finite" (every pattern is a number). The bias is 2^(E − 1) − 1.

    Errors: ValueError for fewer than two exponent bits or one significand bit, or an unknown top.

    >>> mine = Format("fp8 e3m4", exponent=3, significand=4, top="ieee")
    >>> mine.bits, mine.largest, mine.epsilon
    (8, 15.5, 0.0625)
    """

    name: str
    exponent: int
    significand: int
    top: str = "ieee"

    def __post_init__(self):
        if self.exponent < 2 or self.significand < 1:
            raise ValueError(f"{self.name}: exponent={self.exponent!r}, significand={self.significand!r}; "
                             "at least two and one bits")
        if self.top not in ("ieee", "nan", "finite"):
            raise ValueError(f"{self.name}: top={self.top!r}; one of ieee, nan, finite")

    @property
    def bits(self):
        """Bits of one number, sign included."""
        return 1 + self.exponent + self.significand

    @property
    def bias(self):
        """What is subtracted from the stored exponent."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def last(self):
        """The bit pattern of the largest finite number."""
        used = {"ieee": 2**self.significand + 1, "nan": 2, "finite": 1}[self.top]
        return 2 ** (self.bits - 1) - used

    def decode(self, pattern):
        """The values of bit patterns without sign, from 0 to `last`; arrays broadcast. ValueError for another pattern.

        >>> number_format("fp4 e2m1").decode(np.arange(8)).tolist()
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        """
        pattern = np.asarray(pattern)
        if np.any((pattern < 0) | (pattern > self.last)):
            raise ValueError(f"pattern={pattern!r}: from 0 to {self.last} for {self.name}")
        stored, m = np.divmod(pattern, 2**self.significand)
        hidden = np.where(stored > 0, 2**self.significand, 0)
        value = np.ldexp((hidden + m).astype(float), np.maximum(stored, 1) - self.bias - self.significand)
        return value if np.ndim(value) else float(value)

    @property
    def largest(self):
        """The largest finite number."""
        return self.decode(self.last)

    @property
    def smallest_normal(self):
        """The smallest number with a full significand: 2^(1 − bias)."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self):
        """The smallest number above zero, a subnormal: 2^(1 − bias − M)."""
        return 2.0 ** (1 - self.bias - self.significand)

    @property
    def epsilon(self):
        """The distance from 1 to the next number: 2^−M."""
        return 2.0**-self.significand

    @property
    def binades(self):
        """How many doublings lie between the smallest and the largest number: log2(largest / smallest)."""
        return math.log2(self.largest) - math.log2(self.smallest)

    def spacing(self, x):
        """The distance between neighbours at x: 2^(max(⌊log2|x|⌋, 1 − bias) − M); arrays broadcast.

        >>> number_format("bf16").spacing(1000), number_format("fp16").spacing([1, 1000]).tolist()
        (4.0, [0.0009765625, 0.5])
        """
        _, e = np.frexp(np.asarray(x, dtype=float))
        step = np.ldexp(1.0, np.maximum(np.where(np.asarray(x) == 0, 1 - self.bias, e - 1), 1 - self.bias)
                        - self.significand)
        return step if np.ndim(step) else float(step)

    def round(self, x):
        """The nearest number of the format, ties to the even pattern, beyond the range the largest (saturating).

        >>> number_format("fp8 e4m3").round([1.06, 1.0625, 1.19, 449.0, -1e6]).tolist()
        [1.0, 1.0, 1.25, 448.0, -448.0]
        """
        x = np.asarray(x, dtype=float)
        step = self.spacing(x)
        value = np.clip(np.rint(x / step) * step, -self.largest, self.largest)
        return value if np.ndim(value) else float(value)


FORMATS = {f.name: f for f in (
    Format("fp32", 8, 23), Format("tf32", 8, 10), Format("bf16", 8, 7), Format("fp16", 5, 10),
    Format("fp8 e5m2", 5, 2), Format("fp8 e4m3", 4, 3, "nan"), Format("fp4 e2m1", 2, 1, "finite"))}


def number_format(name):
    """The format of that exact name; LookupError lists near names.

    >>> number_format("fp16").largest, number_format("tf32").bits
    (65504.0, 19)
    """
    if name not in FORMATS:
        near = difflib.get_close_matches(str(name), FORMATS, 3, 0.4)
        raise LookupError(f"no format {name!r}; near: {', '.join(near or FORMATS)}")
    return FORMATS[name]


def sticks_at(term, format):
    """Where a running sum of equal terms stops growing: 2^(M + 1 + ⌈log2 term⌉), the sum kept in `format`.

    From there the spacing is at least twice the term, so that every addition rounds back (Higham 2002, section 4.2,
    on the order of summation). Errors: ValueError for a term that is not positive, or a sum beyond the range.

    >>> sticks_at(1, number_format("bf16")), sticks_at(1, number_format("fp16"))
    (256.0, 2048.0)
    """
    if not 0 < term < math.inf:
        raise ValueError(f"term={term!r}: positive and finite")
    end = 2.0 ** (format.significand + 1 + math.ceil(math.log2(term)))
    if end > format.largest:
        raise ValueError(f"term={term!r}: the sum overflows {format.name} at {format.largest:g} before it sticks")
    return end


def running_sum(terms, format):
    """The terms added one by one, each partial sum rounded to `format`.

    >>> running_sum([1.0] * 300, number_format("bf16"))
    256.0
    """
    total = 0.0
    for term in np.asarray(terms, dtype=float).tolist():
        total = format.round(total + term)
    return total


SCALES = {"fp32": 32, "e8m0": 8, "fp8 e4m3": 8}     # bits of one block's scale, by its format


def scaled_cast(x, format, *, block=None, scale="fp32"):
    """x rounded to `format` with one scale for all of it, or one for each `block` neighbours of the last axis.

    The scale takes the block's largest magnitude to the format's largest number. ``scale``: "fp32" (kept exactly here);
    "e8m0", a power of two, 2^(⌊log2 amax⌋ − ⌊log2 largest⌋), as OCP MX (specification v1.0, section 6.3: the largest
    may saturate); "fp8 e4m3" under one more scale of the whole array, as NVFP4 (arXiv:2509.25149, appendix on
    quantization). Returns numbers in x's own units.

    Errors: ValueError for an unknown scale, or a block that does not divide the last axis.

    >>> x = np.array([1e-4, 2e-4, 448.0, 2.0])
    >>> scaled_cast(x, number_format("fp8 e4m3")).tolist()
    [0.0, 0.0, 448.0, 2.0]
    >>> scaled_cast(x, number_format("fp8 e4m3"), block=2).tolist()
    [0.0001, 0.0002, 448.0, 2.0]
    """
    x = np.asarray(x, dtype=float)
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r}: one of {', '.join(SCALES)}")
    if block is not None and (block < 1 or x.shape[-1] % block):
        raise ValueError(f"block={block!r}: must divide the last axis, {x.shape[-1]}")
    parts = x.reshape(-1, block or x.size)
    most = np.abs(parts).max(axis=1, keepdims=True)
    most = np.where(most > 0, most, format.largest)                 # a block of zeros needs no scale
    if scale == "fp32":
        factor = most / format.largest
    elif scale == "e8m0":
        factor = 2.0 ** (np.floor(np.log2(most)) - math.floor(math.log2(format.largest)))
    else:
        e4m3 = number_format("fp8 e4m3")
        whole = most.max() / format.largest / e4m3.largest
        factor = np.maximum(e4m3.round(most / format.largest / whole), e4m3.smallest) * whole
    return (format.round(parts / factor) * factor).reshape(x.shape)


def bits_a_number(format, *, block=None, scale="fp32"):
    """Bits a number with its share of the block's scale: bits + scale bits ÷ block; without blocks the format's own.

    >>> bits_a_number(number_format("fp4 e2m1"), block=32, scale="e8m0")
    4.25
    """
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r}: one of {', '.join(SCALES)}")
    return format.bits + (SCALES[scale] / block if block else 0)
