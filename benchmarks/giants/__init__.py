"""Initializations of the largest published shapes, measured block by block and recorded."""
