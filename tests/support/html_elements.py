"""Pages as a browser would read them."""

from __future__ import annotations

from html.parser import HTMLParser


class Elements(HTMLParser):
    """What a browser would make of a page: its elements with attributes, and all of its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.text: dict[str, str] = {}
        self._inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(attrs)))
        if tag not in ("meta", "link", "br"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag, "elements are closed in order"

    def handle_data(self, data: str) -> None:
        for tag in {*self._inside, "all"}:
            self.text[tag] = self.text.get(tag, "") + data

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", ((data, None),)))

    @property
    def plain(self) -> str:
        return self.text["body"].replace("\u00a0", " ")
