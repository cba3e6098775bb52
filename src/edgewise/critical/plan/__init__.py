"""The cure: `planning` makes a plan (by `theory` or `measured`), `initialize` writes it, `undo` takes it back."""
