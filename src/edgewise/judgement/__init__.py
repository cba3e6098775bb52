"""Trace to Verdict: outcome, probability, findings and remedies."""
