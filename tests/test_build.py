"""The built site: strict, small, whole, and asking no other host for anything."""

import base64
import json
import re
import shutil
import struct
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from scalebook.book import build, notation, serve
from scalebook.book.stills import MARK, merge_stills

PAGE_LIMIT = 2_000_000
SMALL_BOOK = ("_config.yml", "references.bib", "requirements-book.txt")


class Elements(HTMLParser):
    """Every start tag of a page with its attributes, and the text of its inline scripts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.scripts, self._in_script = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.found.append((tag, attributes))
        self._in_script = tag == "script" and "src" not in attributes
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1] += data

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


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The book, built strictly from the working tree into an empty folder."""
    output = tmp_path_factory.mktemp("book")
    assert build.build(build.ROOT, output) == 0, "the strict build failed"
    return output / "_build" / "html"


@pytest.fixture(scope="session")
def pages(site):
    found = {page: Elements(page.read_text(encoding="utf-8")) for page in sorted(site.rglob("*.html"))
             if "_static" not in page.relative_to(site).parts}
    assert len(found) >= 5
    return found


@pytest.fixture(scope="session")
def explorer_pages(pages):
    found = [page for page, elements in pages.items() if _figures(elements)]
    assert found, "no page has an explorer"
    return found


def _figures(elements):
    return [attributes["id"] for tag, attributes in elements.found
            if tag == "figure" and "explorer" in attributes.get("class", "").split()]


def _small_book(folder, text):
    for name in SMALL_BOOK:
        shutil.copy(build.ROOT / name, folder / name)
    (folder / "_toc.yml").write_text("format: jb-book\nroot: index\nchapters:\n  - file: other\n")
    (folder / "index.md").write_text("# A small book\n\nWith a {doc}`page <other>`.\n")
    (folder / "other.md").write_text(f"# Another page\n\n{text}\n")
    return folder


def test_a_second_build_reads_and_writes_no_page(site, capfd):
    before = {page: page.stat().st_mtime_ns for page in site.rglob("*.html")}
    assert build.build(build.ROOT, site.parents[1]) == 0
    assert "0 added, 0 changed, 0 removed" in capfd.readouterr().out
    assert {page: page.stat().st_mtime_ns for page in site.rglob("*.html")} == before


def test_a_failed_build_stays_failed_until_its_cause_is_gone(tmp_path, capfd):
    book = _small_book(tmp_path, "A reference to [nowhere](#no-such-place).")
    assert build.build(book) != 0
    assert build.build(book) != 0
    (book / "other.md").write_text("# Another page\n\nNo reference.\n")
    assert build.build(book) == 0
    assert "no-such-place" in capfd.readouterr().err


def test_an_interrupted_build_starts_anew(tmp_path, capfd):
    book = _small_book(tmp_path, "Words.")
    assert build.build(book) == 0
    (book / "_build" / "sound").unlink()  # what a build that was stopped leaves behind
    capfd.readouterr()
    assert build.build(book) == 0
    assert "2 added, 0 changed, 0 removed" in capfd.readouterr().out


def test_a_changed_library_starts_the_build_anew(tmp_path):
    book = _small_book(tmp_path, "Words.")
    before = build.fingerprint(book)
    (book / "scalebook" / "book").mkdir(parents=True)
    (book / "scalebook" / "book" / "book.css").write_text("p { color: red; }")
    assert build.fingerprint(book) != before


def test_every_page_is_under_two_megabytes(pages):
    sizes = {page.name: page.stat().st_size for page in pages}
    assert max(sizes.values()) < PAGE_LIMIT, sizes


def test_pages_load_nothing_from_another_host(pages):
    for page, elements in pages.items():
        addresses = [address for address in elements.loaded() if address]
        assert addresses, f"{page.name} loads nothing at all"
        foreign = [address for address in addresses if urlsplit(address).netloc]
        assert not foreign, f"{page.name} loads {foreign}"


def test_styles_load_nothing_from_another_host(site):
    styles = sorted(site.rglob("*.css"))
    assert len(styles) > 5
    for style in styles:
        text = style.read_text(encoding="utf-8")
        loaded = re.findall(r"""(?:url\(|@import\s)\s*["']?((?:https?:)?//[^"')]+)""", text)
        assert not loaded, f"{style.name} loads {loaded}"


def test_every_file_and_page_that_is_named_exists(site, pages):
    for page, elements in pages.items():
        for address in [*elements.loaded(), *elements.linked()]:
            parts = urlsplit(address or "")
            if parts.scheme or parts.netloc or not parts.path:
                continue
            target = page.parent / unquote(parts.path)
            assert target.exists(), f"{page.relative_to(site)} names {address}, which is not there"


def test_pages_with_mathematics_load_mathjax_from_the_book(site, pages):
    with_math = [page for page in pages if 'class="math' in page.read_text(encoding="utf-8")]
    assert site / "chapters" / "notation.html" in with_math
    for page in with_math:
        assert any((address or "").endswith("_static/mathjax/tex-mml-chtml.js") for address in pages[page].loaded())
    fonts = list((site / "_static" / "mathjax" / "output" / "chtml" / "fonts" / "woff-v2").glob("*.woff"))
    assert len(fonts) > 20


def test_the_explorer_script_is_on_the_pages_with_explorers_and_on_no_other(pages, explorer_pages):
    with_script = [page for page, elements in pages.items()
                   if any("explorer/page.js" in (address or "") for address in elements.loaded())]
    assert with_script == explorer_pages


def test_vega_is_wrapped_so_that_its_names_stay_its_own(site, explorer_pages):
    script = (site / "_static" / "explorer" / "vega.js").read_text(encoding="utf-8")
    assert script.startswith("(function")
    assert script.rstrip().endswith("();")
    assert "vegaEmbed" in script


def test_no_inline_script_stands_twice_and_thebe_is_gone(pages):
    for page, elements in pages.items():
        scripts = [script.strip() for script in elements.scripts if script.strip()]
        assert len(scripts) == len(set(scripts)), page.name
        assert not any("thebe" in script.lower() for script in scripts), page.name


def test_no_id_stands_twice_on_a_page(pages):
    for page, elements in pages.items():
        ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
        assert len(ids) == len(set(ids)), f"{page.name}: {sorted({i for i in ids if ids.count(i) > 1})}"


def test_every_explorer_has_its_still_picture_with_a_text(pages, explorer_pages):
    for page in explorer_pages:
        stills = [attributes for tag, attributes in pages[page].found
                  if tag == "img" and attributes.get("class") == "explorer-still"]
        assert [re.sub(r"-[0-9a-f]{8}\.png$", "", still["src"].rsplit("/", 1)[1]) for still in stills] == \
            _figures(pages[page])
        for still in stills:
            assert still["alt"].strip()
            assert (page.parent / still["src"]).read_bytes().startswith(b"\x89PNG")
        assert MARK not in page.read_text(encoding="utf-8")


def test_the_notation_page_has_every_formula_once(pages, site):
    text = (site / "chapters" / "notation.html").read_text(encoding="utf-8")
    for module in ("pipeline",):
        for name in notation.formulas_of(module):
            assert text.count(f'<span class="pre">{name}</span>') == 1, name


def _still(name, alt):
    png = b"\x89PNG\r\n\x1a\n" + bytes(8) + struct.pack(">II", 40, 30)
    return {"output_type": "display_data", "metadata": {"scalebook": {"still": name}},
            "data": {"image/png": base64.b64encode(png).decode(), "text/plain": alt}}


def _figure(name):
    return {"output_type": "display_data", "metadata": {},
            "data": {"text/html": [f'<figure class="explorer" id="{name}">\n', MARK, "</figure>"]}}


@pytest.mark.parametrize(("outputs", "complaint"), [
    ([_still("explorer-a", "A curve.")], "no figure"),
    ([_figure("explorer-a")], "no still picture"),
    ([_still("explorer-b", "A curve."), _figure("explorer-a")], "no still picture"),
    ([_still("explorer-a", " "), _figure("explorer-a")], "no alternative text"),
])
def test_a_still_without_its_figure_or_its_text_ends_the_build(outputs, complaint):
    with pytest.raises(ValueError, match=complaint):
        merge_stills({"cells": [{"cell_type": "code", "outputs": outputs}]}, "")


def test_a_still_moves_into_its_own_figure_and_its_text_is_escaped():
    cell = {"cell_type": "code", "outputs": [_still("explorer-b", 'b < "a"'), _still("explorer-a", "The first."),
                                             _figure("explorer-a"), _figure("explorer-b")]}
    pictures = merge_stills({"cells": [cell]}, "../_images/")
    first, second = (output["data"]["text/html"] for output in cell["outputs"])
    assert 'alt="The first."' in first
    assert 'alt="b &lt; &quot;a&quot;"' in second
    assert all(f'src="../_images/{name}"' in first + second for name in pictures)


def test_one_symbol_with_two_meanings_is_refused():
    Variable, Formula = notation.scalebook.formulas.Variable, notation.scalebook.formulas.Formula
    stages, power = Variable("P", "stages"), Variable("P", "power", "W")
    formulas = [Formula("a", stages.symbol, "1", (stages,), "here"), Formula("b", power.symbol, "W", (power,), "there")]
    with pytest.raises(ValueError, match="P means both 'stages'"):
        notation.symbols_of(formulas)


def test_serving_without_a_book_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="make book"):
        serve.server(tmp_path)


def test_two_servers_take_two_ports(tmp_path):
    (tmp_path / "index.html").write_text("a book")
    with serve.server(tmp_path, 0) as first, serve.server(tmp_path, first.server_port) as second:
        assert first.server_port != second.server_port
        assert second.server_address[0] == "127.0.0.1"


def test_notebooks_on_the_site_are_the_committed_ones(site):
    for notebook in sorted((build.ROOT / "chapters").glob("*.ipynb")):
        copies = list((site / "_sources").rglob(notebook.name))
        assert copies, notebook.name
        assert json.loads(copies[0].read_text()) == json.loads(notebook.read_text())
