"""What a browser would see of a page."""

from __future__ import annotations

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collects the elements and their attributes, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("td", "th", "dd", "li"):
            self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data
