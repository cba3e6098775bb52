"""nn.Module to Trace: the same numbers read from real weights, the module left as it was."""
