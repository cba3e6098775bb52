"""CONTRIBUTING.md, SECURITY.md and CHANGELOG.md stand at the root of the repository and become pages of the site."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; a link to docs/x.md becomes one to x.md."""
    for name in PAGES:
        text = (Path(config.docs_dir).parent / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name.lower(), content=text.replace("](docs/", "](")))
    return files
