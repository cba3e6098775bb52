"""Other people's models, in our words."""
