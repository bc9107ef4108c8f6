"""Interaction that works in a notebook and in the built page, with no server."""

from .forecast import forecast
from .quiz import hunch, quiz, verdict
from .standing import standing
from .stepper import stepper

__all__ = ["forecast", "hunch", "quiz", "standing", "stepper", "verdict"]
