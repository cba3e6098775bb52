"""Trace to Verdict: dynamical systems, no transformers."""
