"""The only place where theory and simulation meet."""
