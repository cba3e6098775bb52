"""Trace to Verdict: what the numbers of a network mean, with its description at hand."""
