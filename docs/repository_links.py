"""For the site: links that leave docs/, which are right where the repository is read as files, as on GitHub.

The site has these places under docs/, by symbolic links. GitHub follows none of those.
"""

from typing import Any


PLACES = {"../results/": "results/", "../CONTRIBUTING.md": "contributing.md"}


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Called by mkdocs with each page."""
    for outside, inside in PLACES.items():
        markdown = markdown.replace(f"]({outside}", f"]({inside}")
    return markdown
