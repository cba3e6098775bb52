"""Recipes and their records go into the wheel, as the folder edgewise_recipes beside the package.

`edgewise run` finds them there; in a checkout it finds papers/ and experiments/ themselves.
"""

from pathlib import Path
from shutil import copyfile

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("papers", "experiments")
SUFFIXES = (".py", ".jsonl", ".json", ".md", ".yaml")  # figures are drawn again from the records
TARGET = "edgewise_recipes"


def copies(root, target):
    """(source, place in the target) of every file that goes along."""
    files = [
        path for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES
    ]
    return [(path, target / path.relative_to(root)) for path in files if "__pycache__" not in path.parts]


class BuildWithRecipes(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            for source, place in copies(Path(__file__).parent, Path(self.build_lib) / TARGET):
                place.parent.mkdir(parents=True, exist_ok=True)
                copyfile(source, place)


setup(cmdclass={"build_py": BuildWithRecipes})
