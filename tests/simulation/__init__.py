"""Real random finite-width transformers in plain torch: they judge the theory and share nothing with it."""
