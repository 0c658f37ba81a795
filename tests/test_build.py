"""The built site: strict, small, whole, and asking no other host for anything."""

import base64
import collections
import html
import json
import re
import struct
from urllib.parse import unquote, urlsplit

import pytest

from scalebook.book import build, equations, exercise_list, icons, notebooks, serve, symbols
from scalebook.book.stills import MARK, merge_stills
from scalebook.explorer import assets, spec
from scalebook.formulas import catalogue
from tests import small_books
from tests.elements import Elements

PAGE_LIMIT = 2_000_000


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
    small_books.begun(folder, "other")
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


def test_mathematics_is_typeset_by_the_build(site, pages):
    with_math = [page for page in pages if 'class="math' in page.read_text(encoding="utf-8")]
    assert site / "chapters" / "notation.html" in with_math
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert (page in with_math) == ("mjx-c.mjx-c" in text), f"{page.name}: the style of the formulas"
        assert text.count("<mjx-assistive-mml") == text.count("<mjx-container"), page.name
        assert "<mjx-merror" not in text, page.name
        assert not any("mathjax" in (address or "") for address in pages[page].loaded()), page.name
    fonts = {font.name for font in (site / "_static" / "mathjax").iterdir()}
    assert len(fonts) > 20
    named = set(re.findall(r"_static/mathjax/([\w-]+\.woff)", (site / "chapters" / "notation.html").read_text()))
    assert named
    assert named <= fonts


def test_no_formula_is_left_as_tex(pages):
    for page in pages:
        text = re.sub(r"(?s)<(script|style|pre|code)\b.*?</\1>", "", page.read_text(encoding="utf-8"))
        assert not re.search(r"\\[(\[]|\$\$|\\(frac|left|text|sum)\b", text), page.name


def test_tex_that_is_no_tex_ends_the_build(tmp_path, capfd):
    book = _small_book(tmp_path, r"A formula: $\frac{1}$.")
    assert build.build(book) != 0
    output = capfd.readouterr()
    assert "is not understood by MathJax" in output.out + output.err


def test_a_labelled_equation_has_the_number_of_its_chapter_and_its_reference_leads_there(tmp_path):
    book = _small_book(tmp_path, "$$a = b$$\n\n$$c = d$$ (eq-one)\n\n$$e = f$$ (eq-two)\n\nSee {eq}`eq-two`.")
    (book / "other.md").rename(book / "07_other.md")
    (book / "_toc.yml").write_text("format: jb-book\nroot: index\nchapters:\n  - file: 07_other\n")
    (book / "index.md").write_text("# A small book\n\nBy {eq}`eq-one`.\n")
    assert build.build(book) == 0
    page = (book / "_build" / "html" / "07_other.html").read_text(encoding="utf-8")
    assert re.findall(r'class="eqno" href="#(equation-[\w-]+)"[^>]*>\((.*?)\)', page) == [
        ("equation-eq-one", "7.1"), ("equation-eq-two", "7.2")]
    assert _links(page, "equation-eq-two") == [("#equation-eq-two", "(7.2)")]
    index = (book / "_build" / "html" / "index.html").read_text(encoding="utf-8")
    assert _links(index, "equation-eq-one") == [("07_other.html#equation-eq-one", "(7.1)")]


def test_a_reference_to_an_equation_that_has_no_label_ends_the_build(tmp_path, capfd):
    book = _small_book(tmp_path, "$$a = b$$ (eq-one)\n\nSee {eq}`eq-two`.")
    assert build.build(book) != 0
    output = capfd.readouterr()
    assert "eq-two" in output.out + output.err


def test_the_pages_number_equations_as_the_single_file_notebooks_do(site):
    known = equations.of_all_chapters()
    for path in notebooks.chapters():
        page = (site / "chapters" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert re.findall(r'class="eqno" href="#equation-([\w-]+)"[^>]*>\((.*?)\)', page) == [
            (label, equation.number) for label, equation in known.items() if equation.chapter == path]


def _links(html, place):
    """The links of a page to one of its or another's places, as (address, words), but for an equation's own number."""
    return [(address, re.sub("<[^>]*>", "", words)) for address, words in
            re.findall(rf'<a class="reference[^>]* href="([^"]*#{place})"[^>]*>(.*?)</a>', html)]


def test_every_icon_of_a_page_is_drawn_and_the_icon_font_is_gone(site, pages):
    shown = set()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert icons.missing(text) == [], page.name
        shown |= {name for name in icons.ICONS if name in text}
    assert {"fa-sun", "fa-moon", "fa-bars", "fa-list", "fa-magnifying-glass", "fa-download"} <= shown
    left = [path for path in site.rglob("*") if "fontawesome" in path.name.lower() or path.suffix == ".map"]
    assert left == []
    for sheet in site.rglob("*.css"):
        assert "webfonts" not in sheet.read_text(encoding="utf-8"), sheet.name


def test_every_picture_of_a_page_says_how_large_it_is(pages):
    for page, elements in pages.items():
        for tag, attributes in elements.found:
            if tag == "img" and "_images/" in attributes["src"]:
                assert int(attributes["width"]) > 0, f"{page.name}: {attributes['src']}"
                assert int(attributes["height"]) > 0, f"{page.name}: {attributes['src']}"
                assert attributes["loading"] == "lazy", f"{page.name}: {attributes['src']}"


def test_the_explorer_script_is_on_the_pages_with_explorers_and_on_no_other(pages, explorer_pages):
    with_script = [page for page, elements in pages.items()
                   if any("explorer/page.js" in (address or "") for address in elements.loaded())]
    assert with_script == explorer_pages


def test_vega_is_wrapped_so_that_its_names_stay_its_own(site, explorer_pages):
    script = (site / "_static" / "explorer" / "vega.js").read_text(encoding="utf-8")
    assert script.startswith("(function")
    assert script.rstrip().endswith("();")
    assert re.search(r"window\.vega\s*=\s*\{", script)
    assert "vega-lite" not in script  # the charts are compiled


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


def test_the_notation_page_has_every_formula_and_every_symbol(site):
    text = (site / "chapters" / "notation.html").read_text(encoding="utf-8")
    formulas = collections.Counter(name.split(".")[1] for name in catalogue())
    for name, times in formulas.items():
        assert text.count(f'<span class="pre">{name}</span>') >= times, name
    for meaning, _ in symbols.all_meanings():
        assert html.escape(meaning.meaning, quote=False) in text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


def test_the_page_of_exercises_numbers_them_as_their_chapters_do(site):
    page = (site / "chapters" / "exercises.html").read_text(encoding="utf-8")
    listed = dict(re.findall(r"<p>(\d+)</p></td>\s*<td[^>]*><p><a[^>]*href=\"([^\"]+)\"", page))
    for path, exercises in exercise_list.of_all_chapters().items():
        chapter = (site / "chapters" / f"{path.stem}.html").read_text(encoding="utf-8")
        found = re.findall(r'id="(ex-[\w-]+)">\s*<p class="admonition-title"><span class="caption-number">Exercise '
                           r"(\d+)", chapter)
        assert found == [(exercise.label, str(exercise.number)) for exercise in exercises]
        for exercise in exercises:
            assert listed[str(exercise.number)] == f"{path.stem}.html#cell-{exercise.cell}"


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


def test_a_figure_keeps_the_place_of_its_chart_on_a_screen_and_on_a_phone():
    def legend_of(*names):
        values = [{"x": place, "y": place, "of": name} for place, name in enumerate(names)]
        marks = {axis: {"field": axis, "type": "quantitative"} for axis in "xy"}
        return {"data": {"values": values}, "mark": "point", "width": "container", "height": 200, "config": spec.CONFIG,
                "encoding": {**marks, "color": {"field": "of", "type": "nominal"}}}

    def places(chart):
        figure = _figure("explorer-a")
        script = f'<script type="application/json" class="explorer-spec">{json.dumps(chart)}</script>'
        figure["data"]["text/html"] = f'<figure id="explorer-a"><div class="explorer-view"></div>{MARK}{script}'
        merge_stills({"cells": [{"cell_type": "code", "outputs": [_still("explorer-a", "A curve."), figure]}]}, "")
        style = re.search(r'class="explorer-view" style="([^"]*)"', figure["data"]["text/html"])[1]
        return [int(pixels) for pixels in re.fullmatch(r"--chart-height: (\d+)px; --narrow-chart-height: (\d+)px",
                                                       style).groups()]

    (wide, one), (same, four) = places(legend_of("a")), places(legend_of("a", "b", "c", "d"))
    assert wide == same == 640 * 30 / 40, "that of the still"
    assert four >= one + 3 * spec.CONFIG["legend"]["labelFontSize"], "each entry has a row of its own"
    assert f"@container (width < {spec.NARROW}px)" in assets.stylesheet()


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
