"""Architecture to Trace: infinite width, no modules."""
