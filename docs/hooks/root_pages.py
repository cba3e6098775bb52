"""Add pages from outside docs/ to the site: CONTRIBUTING, SECURITY, CHANGELOG, research/, the map of the source."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, with links as they are on the site."""
    root = Path(config.docs_dir).parent
    for name in ROOT_PAGES:
        text = (root / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name.lower(), content=text))
    for path in sorted((root / "research").glob("*.md")):
        text = path.read_text(encoding="utf-8").replace("](../docs/", "](../")
        for name in ROOT_PAGES:
            text = text.replace(f"](../{name}", f"](../{name.lower()}")
        place = "index.md" if path.name == "README.md" else path.name
        files.append(File.generated(config, f"research/{place}", content=text))
    source_map = runpy.run_path(str(root / "tools" / "source_map.py"))
    files.append(File.generated(config, "source_map.md", content=source_map["page"]()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links from docs/ to research/ go one folder up in the repository, and not on the site."""
    return markdown.replace("](../research/README.md", "](research/index.md").replace(
        "](../research/", "](research/"
    )
