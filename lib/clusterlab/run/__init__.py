"""Experiments on real processes: everything here needs torch."""
