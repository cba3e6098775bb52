"""Which part of a model is which, by names and shapes."""
