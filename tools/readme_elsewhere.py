"""README.md as a package index shows it: there, links and pictures must name the repository. Called when one builds."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?![a-z]+:|#)")


class ReadmeElsewhere(MetadataHookInterface):
    """What pyproject.toml names as the hook for the project's metadata."""

    def update(self, metadata):
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = with_absolute_links(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text, repository):
    """Return Markdown in which what was a path in the repository is an address: of a page, or of a picture itself."""

    def absolute(link):
        picture, words = link.groups()
        return f"{picture}{words}{repository}/{'raw' if picture else 'blob'}/main/"

    return RELATIVE_LINK.sub(absolute, text)
