"""One function for each published family: a config to knobs."""
