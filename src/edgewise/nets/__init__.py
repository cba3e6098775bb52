"""Small readable transformers with every knob exposed, built from an `Architecture`."""
