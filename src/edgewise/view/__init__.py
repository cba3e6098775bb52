"""Figures: traces and verdicts to figure data to drawing."""
