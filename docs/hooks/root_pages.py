"""CONTRIBUTING.md, SECURITY.md, CHANGELOG.md and research/log.md stand outside docs/ and become pages of the site."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "research/log.md")
PLACES = (
    "](docs/",
    "](../docs/",
    "](research/",
)  # of links between them, which are beside each other on the site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; a link to docs/x.md becomes one to x.md."""
    for name in PAGES:
        text = (Path(config.docs_dir).parent / name).read_text(encoding="utf-8")
        for place in PLACES:
            text = text.replace(place, "](")
        files.append(File.generated(config, Path(name).name.lower(), content=text))
    return files
