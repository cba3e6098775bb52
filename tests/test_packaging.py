"""What goes into the wheel, and what a package index shows of the README."""

from __future__ import annotations

import importlib.util
import re
import tomllib
import zlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
ADDRESS = "https://example.org/someone/edgewise"


@pytest.fixture(scope="module")
def packaging() -> ModuleType:
    pytest.importorskip("setuptools")
    spec = importlib.util.spec_from_file_location("packaging_of_edgewise", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_link_of_the_readme_is_absolute_on_an_index(packaging: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text()
    text = packaging.with_absolute_links(readme, ADDRESS, "v0.1.0")
    places = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text)
    assert len(places) > 20
    assert all(place.startswith(("https://", "#")) for _, place in places)
    assert f"]({ADDRESS}/blob/v0.1.0/docs/limits.md)" in text
    assert f"]({ADDRESS}/raw/v0.1.0/docs/images/fix_encoder48.png)" in text
    for _, place in places:
        _, found, file = place.partition("v0.1.0/")
        assert not found or (ROOT / file.partition("#")[0]).exists(), place


def test_a_build_outside_a_release_states_no_address(
    packaging: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    assert packaging.described()["project_urls"] == {}
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/edgewise")
    monkeypatch.setenv("GITHUB_REF_NAME", "v9")
    described = packaging.described()
    assert described["project_urls"]["Issues"].endswith("/someone/edgewise/issues")
    assert "/blob/v9/docs/check.md" in described["long_description"]


def test_rows_and_results_go_into_the_package_and_lists_of_models_do_not(packaging: ModuleType) -> None:
    places = {place.as_posix() for _, place in packaging.copies(ROOT, Path("edgewise/recipes"))}
    assert "edgewise/recipes/papers/rows.yaml" in places
    assert "edgewise/recipes/papers/poole2016exponential/recorded/figure3_circle.jsonl" in places
    left_out = ("/strangers/", "/preflight/", ".small.jsonl")
    assert not [place for place in places if any(part in place for part in left_out)]
    manifest = (ROOT / "MANIFEST.in").read_text()
    for folder in packaging.FOLDERS:  # the wheel is built from the source distribution
        line = next(line for line in manifest.splitlines() if line.startswith(f"recursive-include {folder} "))
        endings = {Path(place).suffix for place in places if f"/{folder}/" in place}
        assert {f"*{ending}" for ending in endings} <= set(line.split())


def test_the_wheel_stays_under_five_megabytes(packaging: ModuleType) -> None:
    """By the sizes its files have in a zip archive; 50 kB are left for the list of files and metadata."""
    files = [file for file, _ in packaging.copies(ROOT, Path("edgewise/recipes"))]
    library = (ROOT / "src" / "edgewise").rglob("*")
    files += [file for file in library if file.is_file() and "__pycache__" not in file.parts]
    size = sum(
        len(zlib.compress(file.read_bytes())) + 100 + 2 * len(str(file.relative_to(ROOT))) for file in files
    )
    assert len(files) > 500 and size < 4_950_000


def test_extras_and_python_versions_are_those_of_the_docs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    install = (ROOT / "docs" / "install.md").read_text()
    for extra in project["optional-dependencies"]:
        assert f"`{extra}`" in install, extra
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    versions = re.findall(r"Python :: (3\.\d+)\"", "\n".join(f'{c}"' for c in project["classifiers"]))
    assert versions and all(f'"{version}"' in workflow for version in versions)


def test_every_action_is_pinned_by_its_commit() -> None:
    """A tag can be moved to other code; the comment says which version the commit is."""
    for workflow in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        for line in re.findall(r"uses: (.*)", workflow.read_text()):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), f"{workflow.name}: {line}"


def test_ci_covers_every_system_and_python() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    rows = re.findall(r'os: (\w+), python: "([\d.]+)", versions: ([\w ]+)', text)
    assert {system for system, _, _ in rows} == {"ubuntu", "macos", "windows"}
    assert {python for _, python, _ in rows} == {"3.11", "3.12", "3.13", "3.14"}
    for system in ("ubuntu", "macos", "windows"):
        assert {"pinned", "newest"} <= {versions for each, _, versions in rows if each == system}


def test_ci_installs_the_pinned_versions_by_hash() -> None:
    """The file with hashes has the versions of constraints.txt, each with a hash, and every workflow installs it."""
    blocks = re.split(r"\n(?=\w)", (ROOT / "constraints-hashed.txt").read_text())[1:]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", block) for block in blocks)
    hashed, pinned = (
        {
            re.sub(r"[-_.]+", "-", name.lower()): version
            for name, version in re.findall(PIN, text, re.MULTILINE)
        }
        for text in ("\n".join(blocks), (ROOT / "constraints.txt").read_text())
    )
    assert len(hashed) == len(blocks) and "torch" in hashed and len(set(hashed) & set(pinned)) > 120
    assert not {name for name in set(hashed) & set(pinned) if hashed[name] != pinned[name]}
    for name in ("ci", "nightly", "release"):
        assert "make locked" in (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(), name
    assert "--require-hashes" in (ROOT / "Makefile").read_text()


PIN = r"^([\w.-]+)(?:\[\w+\])?==([\w.+]+)"
