"""Configs, files and modules of others to a description (`Architecture`): what is where in a model."""
