"""Verdicts as HTML, in the words of the shell: the report in one file, and what a notebook shows of every noun."""
