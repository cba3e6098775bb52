"""Callbacks for Hugging Face Trainer and Lightning."""
