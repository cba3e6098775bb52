"""The forecast's report."""
