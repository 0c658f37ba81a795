"""What a page of HTML holds, read without a browser."""

from html.parser import HTMLParser


class Elements(HTMLParser):
    """Every start tag of a page with its attributes, and its inline scripts, each with its type."""

    def __init__(self, text):
        super().__init__()
        self.found, self._inline, self._in_script = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.found.append((tag, attributes))
        self._in_script = tag == "script" and "src" not in attributes
        if self._in_script:
            self._inline.append([attributes.get("type", ""), ""])

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self._inline[-1][1] += data

    @property
    def scripts(self):
        """The texts of the inline scripts, data among them."""
        return [text for _, text in self._inline]

    @property
    def programs(self):
        """The texts of the inline scripts that the browser runs, data left out."""
        return [text for kind, text in self._inline if "json" not in kind]

    @property
    def handlers(self):
        """The programs that stand in attributes, such as `onclick`."""
        return [value for _, attributes in self.found for name, value in attributes.items() if name.startswith("on")]

    def loaded(self):
        """The addresses that the browser loads by itself, without a click."""
        for tag, attributes in self.found:
            if tag in {"script", "img", "iframe", "source", "embed", "video", "audio", "input"}:
                yield attributes.get("src")
            if tag == "link" and attributes.get("rel") in {"stylesheet", "preload", "icon", "modulepreload"}:
                yield attributes.get("href")

    def linked(self):
        """The addresses that a reader can go to."""
        return [attributes.get("href") for tag, attributes in self.found if tag == "a"]
