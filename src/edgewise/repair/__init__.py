"""`critical_plan` and `initialize_`: weights with which a model trains."""
