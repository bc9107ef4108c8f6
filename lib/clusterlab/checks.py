"""What a field of a hardware dataclass may hold; each check raises a ValueError naming part, field and value."""

from numbers import Integral

import numpy as np


def fail(part, name, wanted):
    """Say what the field must be.

    >>> from types import SimpleNamespace
    >>> fail(SimpleNamespace(name="switch", ports=0), "ports", "positive")
    Traceback (most recent call last):
      ...
    ValueError: switch: ports must be positive, not 0
    """
    raise ValueError(f"{getattr(part, 'name', type(part).__name__)}: {name} must be {wanted}, "
                     f"not {getattr(part, name)!r}")


def positive(part, name, zero=False):
    """The field is one or several finite numbers above 0, or from 0 with ``zero``.

    >>> from types import SimpleNamespace
    >>> positive(SimpleNamespace(name="cable", power=-1.0), "power")
    Traceback (most recent call last):
      ...
    ValueError: cable: power must be positive, not -1.0
    """
    value = np.asarray(getattr(part, name))
    good = value.dtype.kind in "iuf" and np.all(np.isfinite(value) & (value >= 0 if zero else value > 0))
    if not good:
        fail(part, name, "at least 0" if zero else "positive")


def count(part, name, least=1):
    """The field is a whole number of at least ``least``.

    >>> from types import SimpleNamespace
    >>> count(SimpleNamespace(name="switch", ports=64), "ports")
    """
    value = getattr(part, name)
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        fail(part, name, f"a whole number of at least {least}")


def instance(part, name, kind):
    """The field is an instance of ``kind``.

    >>> from types import SimpleNamespace
    >>> instance(SimpleNamespace(name="switch", ports=64), "ports", int)
    """
    if not isinstance(getattr(part, name), kind):
        fail(part, name, f"a {getattr(kind, '__name__', 'Link or None')}")
