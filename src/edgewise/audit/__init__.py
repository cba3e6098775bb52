"""Is this model initialized as it should be? What fresh weights tell, before any training."""
