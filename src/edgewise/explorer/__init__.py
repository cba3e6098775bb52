"""The local web page: a versioned JSON API over the theory, its safeguards, and in `static/` the page itself."""
