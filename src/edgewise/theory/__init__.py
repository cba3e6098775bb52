"""Description to Trace by three recursions at infinite width; no modules."""
