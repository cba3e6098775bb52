"""What a built module does, read from its behaviour in traced and edited forward passes."""
