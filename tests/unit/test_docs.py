"""What README and docs name exists, and what they tell people to type resolves."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(page):
    """Command lines of a page's shell blocks, comments dropped, continuation lines joined."""
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", page.read_text(), re.DOTALL)
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield [w for w in words if w != "&"]


ALL_COMMANDS = [(page.name, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_file_a_page_names_exists(page):
    text = page.read_text()
    folders = "scripts|configs|docs|tests|search_r1|requirements"
    named = re.findall(rf"\b(?:{folders})/[\w./-]+\.\w+", text)
    named += [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    missing = [n for n in named if not any((b / n).exists() for b in (ROOT, page.parent))]
    assert not missing


@pytest.mark.parametrize(("page", "words"), ALL_COMMANDS, ids=lambda v: str(v)[:60])
def test_every_documented_command_resolves(page, words):
    from search_r1.cli import build_parser

    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[:1] == ["bash"]:
        assert (ROOT / words[1]).is_file(), words
    elif words[:1] == ["tree-grpo"]:
        known = next(a for a in build_parser()._actions if a.choices and a.dest != "help").choices
        assert words[1] in known, words


def test_the_readmes_file_tree_is_the_trees():
    text = (ROOT / "README.md").read_text()
    block = text.split("## Where things are")[1].split("```")[1]
    folder = ROOT
    for line in block.splitlines():
        if not line.strip():
            continue
        names = re.split(r"\s{2,}", line.strip())[0].split()
        if not line.startswith(" "):
            folder = ROOT / names[0]
            assert all((ROOT / n).is_dir() for n in names), line
        else:
            assert all((folder / n).exists() for n in names), line


def test_the_first_two_commands_are_the_quickstart_and_the_tests():
    first = [words for name, words in ALL_COMMANDS if name == "README.md"][:2]
    assert first == [["bash", "scripts/quickstart.sh"], ["bash", "scripts/test.sh"]]
