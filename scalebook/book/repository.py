"""Where the book's files lie on GitHub, and the addresses that follow from it.

One place says it: `repository.url` in `_config.yml`, or, for one build, `make book REPOSITORY=owner/name`. Where
neither does, no page links to a repository.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SCALEBOOK_REPOSITORY"
NOTEBOOKS = "colab"  # the branch that holds the notebooks of single files, and nothing else; see .github/workflows
PATTERN = re.compile(r"(?:https://github\.com/)?([A-Za-z0-9-]+)/([A-Za-z0-9._-]+?)(?:\.git)?/?")


@dataclass(frozen=True)
class Repository:
    """A repository on GitHub, and the branch that the pages are made from."""

    owner: str
    name: str
    branch: str = "main"

    @property
    def url(self):
        """The address of the repository."""
        return f"https://github.com/{self.owner}/{self.name}"

    @property
    def site(self):
        """The address at which GitHub publishes the book, with a slash at its end."""
        host = f"{self.owner.lower()}.github.io"
        return f"https://{host}/" if self.name.lower() == host else f"https://{host}/{self.name}/"

    def open_in_colab(self, stem):
        """The address that opens the single-file notebook of a chapter in Colab."""
        return (f"https://colab.research.google.com/github/{self.owner}/{self.name}"
                f"/blob/{NOTEBOOKS}/{stem}.ipynb")


def parse(text, branch="main"):
    """The repository that `text` names, or None for an empty text.

    Raises ValueError for anything but owner/name and https://github.com/owner/name.

    >>> parse("me/book").url, parse("https://github.com/me/book.git").name, parse("")
    ('https://github.com/me/book', 'book', None)
    >>> parse("me/book").site, parse("Me/me.github.io").site
    ('https://me.github.io/book/', 'https://me.github.io/')
    """
    if not text:
        return None
    found = PATTERN.fullmatch(text)
    if not found:
        raise ValueError(f"repository = {text!r} is not allowed; it must be owner/name, or "
                         "https://github.com/owner/name, or empty")
    return Repository(*found.groups(), branch)


def chosen(folder):
    """The repository that this build is for: as the environment says, else as `_config.yml` in `folder`; or None."""
    import yaml

    path = Path(folder) / "_config.yml"
    configured = (yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}).get("repository") or {}
    branch = configured.get("branch") or "main"
    return parse(os.environ.get(VARIABLE) or configured.get("url") or "", branch)


def theme_options(repository):
    """The options that make the theme show its buttons: the repository, a page's issues, and its source to edit."""
    if repository is None:
        return {}
    return {"repository_url": repository.url, "repository_branch": repository.branch, "path_to_docs": "",
            "repository_provider": "github", "use_repository_button": True, "use_issues_button": True,
            "use_edit_page_button": True}
