"""What a config says, read without torch or transformers."""
