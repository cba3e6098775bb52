"""The web page of `edgewise explore`: JSON API, process pool, safeguards; `static/` holds the page itself."""
