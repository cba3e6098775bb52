"""What a built module does, read from its behavior in traced and edited forward passes."""
