"""Interaction that works in a notebook and in the built page, with no server."""
