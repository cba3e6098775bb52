"""Watching a training run: rows at a stated price, and alarms that say what went wrong first."""
