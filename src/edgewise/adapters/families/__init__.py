"""One file per group of model families: what their configs say and how their weights are drawn."""
