"""nn.Module to Trace: measure a real model on a batch and leave it unchanged."""
