"""What pyproject lists is what is on disk, and nothing of ours lands under a bare name."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
UNSHIPPED = {ROOT / "kernels" / "tools"}  # development code
SOURCES = {"radixlang": "radixlang", "runtime": "radixlang.runtime", "kernels": "radixlang.kernels"}


def setuptools_table() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["tool"]["setuptools"]


def packages_on_disk() -> dict[str, str]:
    """Dotted name → folder, for every folder of ours that holds Python files."""
    found = {}
    for folder, package in SOURCES.items():
        for path in [ROOT / folder, *sorted((ROOT / folder).rglob("*"))]:
            inside_link = any(parent.is_symlink() for parent in [path, *path.parents])
            if (
                path.is_dir()
                and not inside_link
                and any(path.glob("*.py"))
                and path not in UNSHIPPED
            ):
                suffix = path.relative_to(ROOT / folder).parts
                found[".".join([package, *suffix])] = str(path.relative_to(ROOT))
    return found


def test_every_package_is_listed_and_mapped() -> None:
    table = setuptools_table()
    assert sorted(table["packages"]) == sorted(packages_on_disk())
    assert {name: table["package-dir"][name] for name in table["packages"]} == packages_on_disk()


def test_every_package_is_on_the_map_of_folders() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    absent = []
    for folder in packages_on_disk().values():
        root, *parts = Path(folder).parts
        block = re.search(rf"^{root}/ .*\n(?: +.*\n)+", text, re.MULTILINE)
        assert block is not None
        if parts and parts[-1] not in re.findall(r"\w+", block[0]):
            absent.append(folder)
    assert absent == []


def test_lists_of_modules_are_complete() -> None:
    """`__all__` of a package that imports nothing names its files and packages."""
    wrong = {}
    for folder in map(Path, packages_on_disk().values()):
        source = ROOT / folder / "__init__.py"
        text = source.read_text(encoding="utf-8") if source.exists() else ""
        found = re.search(r"^__all__ = (\[[^]]*\])", text, re.MULTILINE)
        if found is not None and not re.search(r"^(from|import) ", text, re.MULTILINE):
            files = {path.stem for path in (ROOT / folder).glob("[!_]*.py")}
            packages = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
            difference = (files | packages) ^ set(ast.literal_eval(found[1]))
            if difference:
                wrong[str(folder)] = sorted(difference)
    assert wrong == {}


def test_links_make_a_checkout_importable() -> None:
    for name in ("runtime", "kernels"):
        link = ROOT / "radixlang" / name
        assert link.is_symlink()
        assert link.resolve() == ROOT / name


def test_kernels_folder_is_no_package_by_itself() -> None:
    """transformers imports whatever package is called `kernels`; ours must not answer."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_installed_package_is_typed() -> None:
    assert (ROOT / "radixlang" / "py.typed").exists()


def test_every_file_that_is_not_python_is_package_data() -> None:
    """A folder without Python files, such as the library's C++, belongs to the package above it."""
    patterns = setuptools_table()["package-data"]["*"]
    folders = [ROOT / folder for folder in packages_on_disk().values()]
    packaged = {path for folder in folders for each in patterns for path in folder.glob(each)}
    links = {ROOT / "radixlang" / name for name in ("runtime", "kernels")}
    found = {
        path
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix not in (".py", ".pyc") and not (UNSHIPPED | links) & {path, *path.parents}
    }
    assert found - packaged == set()
