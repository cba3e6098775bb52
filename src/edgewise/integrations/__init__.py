"""Callbacks for the training loops of other libraries."""
