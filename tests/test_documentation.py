"""What the documents say of files and programs is so."""

import itertools
import re

import pytest
from helpers.launch import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
TREE = README.partition("## What is where")[2]


def test_readme_shows_the_first_program_as_it_is():
    shown = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    _, _, program = (REPOSITORY / "examples" / "first_program.py").read_text().split('"""', 2)
    assert shown.strip() == program.strip()


@pytest.mark.parametrize("document", ["README.md", "DEVELOPERS.md", "docs"])
def test_files_that_documents_name_exist(document):
    path = REPOSITORY / document
    texts = [one.read_text() for one in (path.glob("*.md") if path.is_dir() else [path])]
    for text in texts:
        named = re.findall(r"`((?:examples|docs|tests|benchmarks|pynccl)/[\w./]*\w)`", text)
        linked = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
        for name in named:
            assert (REPOSITORY / name).exists(), name
        for name in linked:
            assert (REPOSITORY / name).exists() or (path / name).exists(), name


@pytest.mark.parametrize("folder", ["pynccl", "examples"])
def test_readme_lists_every_file(folder):
    listing = TREE.partition(f"    {folder}/")[2]
    lines = itertools.takewhile(lambda line: line.startswith("      "), listing.splitlines()[1:])
    listed = {line.split()[0] for line in lines}
    there = {path.name for path in (REPOSITORY / folder).glob("[a-z]*.py")}
    there |= {f"{path.parent.name}/" for path in (REPOSITORY / folder).glob("*/*.[cp]*")}
    there.discard("__pycache__/")
    assert listed == there, f"README.md's tree and {folder}/ differ in {listed ^ there}"


def test_make_targets_that_documents_name_exist():
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w%-]*):", makefile, re.MULTILINE))
    for name in ("README.md", "DEVELOPERS.md", "docs/gpu.md", "docs/performance.md"):
        for target in re.findall(r"^    make ([a-z][\w-]*)", (REPOSITORY / name).read_text(), re.M):
            assert target in targets or re.fullmatch(r"test-\d", target), f"{name}: make {target}"
