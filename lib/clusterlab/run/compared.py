"""A run beside the one it should equal: the same losses, to the bit or within which rounding."""


class Compared:
    """What has `losses`, one a step, and those of a `reference` run: a single process, or one that nothing disturbed.

    >>> class Run(Compared):
    ...     losses, reference = [2.0, 1.5], [2.0, 1.0]
    >>> Run().bitwise, Run().deviation
    (False, 0.5)
    """

    @property
    def bitwise(self):
        """Whether every loss has the very bits of the reference."""
        return self.losses == self.reference

    @property
    def deviation(self):
        """Largest relative difference of a loss from the reference's; ValueError if one run has more steps."""
        return max(abs(a - b) / b for a, b in zip(self.losses, self.reference, strict=True))
