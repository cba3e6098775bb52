"""Mistakes planted one at a time, and whether the default tests notice: `make mutants`."""
