"""Interaction that works in a notebook and in the built page, with no server."""

from .cards import cards
from .catalogue import catalogue
from .forecast import forecast
from .quiz import hunch, quiz, verdict
from .standing import standing
from .stepper import stepper

__all__ = ["cards", "catalogue", "forecast", "hunch", "quiz", "standing", "stepper", "verdict"]
