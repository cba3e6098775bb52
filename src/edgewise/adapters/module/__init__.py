"""What a built model does: its weights, and one run of one block."""
