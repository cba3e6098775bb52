"""Runs at any scale: recipes, an append-only store, an engine, small real tasks, training."""
