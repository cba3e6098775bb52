"""A config of any class that transformers has: small models of it are built, read, and scaled to the config's sizes."""
