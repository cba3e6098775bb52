"""Is this model initialized as it should be? A look at the weights, before any training."""
