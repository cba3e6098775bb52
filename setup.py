"""What pyproject.toml cannot say: recipes in the wheel, and links of the README that work on a package index.

Recipes and their results go into the package as the folder `recipes`, where `edgewise run` finds them; in a checkout it
finds papers/ and experiments/ themselves. Lists of models and mistakes that are asked from a checkout stay out.

The address of the repository is that of the release workflow (GITHUB_REPOSITORY); a build elsewhere keeps the links of
the README relative and states no project URLs.
"""

import os
import re
from pathlib import Path
from shutil import copyfile

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
FOLDERS = ("papers", "experiments")
SUFFIXES = (".py", ".jsonl", ".json", ".md", ".yaml")  # figures are drawn again from the results
# The first four hold no recipes, those of the census need another environment, those of rates hours of trainings.
LEFT_OUT = {"atlas", "mistakes", "preflight", "strangers", "census", "learning_rate", "__pycache__"}
TARGET = "edgewise/recipes"


def copies(root, target):
    """(source, place in the target) of every file that goes along."""
    files = [
        path for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES
    ]
    files = [path for path in files if not path.name.endswith(".small.jsonl")]  # cases of `make canary`
    places = [(path, path.relative_to(root)) for path in files]
    return [(path, target / place) for path, place in places if not LEFT_OUT & set(place.parts)]


class BuildWithRecipes(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            for source, place in copies(ROOT, Path(self.build_lib) / TARGET):
                place.parent.mkdir(parents=True, exist_ok=True)
                copyfile(source, place)


def repository():
    """The address of the repository in a release workflow, else None."""
    name = os.environ.get("GITHUB_REPOSITORY")
    return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}" if name else None


def with_absolute_links(readme, address, revision):
    """The README with pictures as raw files and links as pages of that revision."""

    def absolute(match):
        mark, text, place = match.groups()
        return f"{mark}[{text}]({address}/{'raw' if mark else 'blob'}/{revision}/{place})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", absolute, readme)


def described():
    """Long description and project URLs, as far as the address of the repository is known."""
    readme, address = (ROOT / "README.md").read_text(encoding="utf-8"), repository()
    if address is None:
        return {"long_description": readme, "project_urls": {}}
    pages = {"Documentation": "tree/main/docs", "Changelog": "blob/main/CHANGELOG.md", "Issues": "issues"}
    urls = {"Source": address} | {name: f"{address}/{place}" for name, place in pages.items()}
    revision = os.environ.get("GITHUB_REF_NAME", "main")
    return {"long_description": with_absolute_links(readme, address, revision), "project_urls": urls}


if __name__ == "__main__":  # tests import the functions
    setup(
        cmdclass={"build_py": BuildWithRecipes}, long_description_content_type="text/markdown", **described()
    )
