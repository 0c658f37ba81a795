"""Predictions as readers meet them: closed until one commits, then right or wrong and why, with no script at all."""

import json
import re
from dataclasses import dataclass
from html import unescape

import pytest
from sphinx.search.en import SearchEnglish

from tests.browser.looks import LOOKS
from tests.browser.site_pages import SITE, pages
from tests.chromium import watched_page

pytestmark = pytest.mark.browser
GROUP = re.compile(r'<div class="prediction" id="predict-([a-z0-9-]+)".*?\n</div>', re.S)
CHOICE = re.compile(r'data-right="(true|false)"><summary>(.+?)</summary><p><strong>(.+?)</strong> (.+?)</p>', re.S)
# What a reader sees of a prediction: the paragraphs that are shown, the choices, and the room that they take.
TOLD = """(group) => ({
  paragraphs: [...group.querySelectorAll("p")].filter((p) => p.checkVisibility()).map((p) => p.innerText),
  summaries: [...group.querySelectorAll("summary")].filter((one) => one.checkVisibility()).map((one) => one.innerText),
  boxes: [...group.querySelectorAll("details")].map((folded) => folded.getBoundingClientRect().toJSON()),
  heights: [...group.querySelectorAll("summary")].map((one) => one.getBoundingClientRect().height),
})"""


@dataclass(frozen=True)
class Choice:
    """One choice as the page's HTML says it."""

    right: bool
    words: str
    verdict: str
    reason: str


def predictions_of(page):
    """The predictions of a page of the site: pairs (name, choices)."""
    html = (SITE / page).read_text(encoding="utf-8")
    return [(found.group(1), [Choice(key == "true", *map(unescape, texts)) for key, *texts in
                              CHOICE.findall(found.group())]) for found in GROUP.finditer(html)]


ASKED = {page: found for page in pages() if (found := predictions_of(page))}


@pytest.fixture
def unscripted(browser):
    """A function that opens a page of the site from disk, on a phone's width and without scripts."""
    opened = []

    def open_page(name):
        page, watch = watched_page(browser, java_script_enabled=False, **LOOKS["phone"])
        opened.append(page)
        page.goto((SITE / name).as_uri(), wait_until="load")
        return page, watch

    yield open_page
    for page in opened:
        page.context.close()


@pytest.mark.parametrize("name", sorted(ASKED))
def test_each_choice_opens_into_its_verdict_and_reason_and_nothing_is_told_before(unscripted, name):
    page, watch = unscripted(name)
    for identity, choices in ASKED[name]:
        group = page.locator(f"#predict-{identity}")
        assert [choice.right for choice in choices].count(True) == 1
        told = group.evaluate(TOLD)
        assert told["paragraphs"] == [group.locator(".prediction-question").inner_text()]
        assert told["summaries"] == [choice.words for choice in choices]
        for number, choice in enumerate(choices):
            group.locator("summary").nth(number).click()
            now = group.evaluate(TOLD)
            verdict = f"{'Right.' if choice.right else 'Not quite.'} {choice.reason}"
            assert now["paragraphs"] == [*told["paragraphs"], verdict]
            told = now
            box = now["boxes"][number]
            assert 0 <= box["left"] < box["right"] <= LOOKS["phone"]["viewport"]["width"], "it leaves the window"
            assert now["heights"][number] >= 44, "a finger needs 44 pixels"
    assert (watch.foreign, watch.errors) == ([], [])


def test_the_keyboard_alone_reaches_and_opens_a_choice_and_a_reader_is_told_that_it_folds(unscripted):
    name = sorted(ASKED)[0]
    page, _ = unscripted(name)
    identity, choices = ASKED[name][0]
    group = page.locator(f"#predict-{identity}")
    summaries = group.locator("summary")
    page.goto(f"{page.url}#predict-{identity}")  # as a link leads there; from there on the keyboard goes
    for number, _ in enumerate(choices):
        page.keyboard.press("Tab")
        assert summaries.nth(number).evaluate("(summary) => summary === document.activeElement")
        assert summaries.nth(number).evaluate("(summary) => getComputedStyle(summary).outlineStyle") == "solid"
        page.keyboard.press("Enter" if number % 2 else "Space")
        assert group.locator("details").nth(number).locator("p").is_visible()
    aloud = group.aria_snapshot()
    assert aloud.startswith(f'- group "{group.locator(".prediction-question").inner_text()}"'), aloud


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_print_keeps_the_question_and_the_choices_and_withholds_the_answers(unscripted, theme):
    name = sorted(ASKED)[0]
    page, _ = unscripted(name)
    identity, choices = ASKED[name][0]
    group = page.locator(f"#predict-{identity}")
    for summary in group.locator("summary").all():
        summary.click()
    page.emulate_media(media="print", color_scheme=theme)
    assert group.locator("p:visible").all_inner_texts() == [group.locator(".prediction-question").inner_text()]
    assert group.locator("summary:visible").all_inner_texts() == [choice.words for choice in choices]


def test_in_the_dark_a_prediction_lies_on_the_page_itself(opened):
    page, _ = opened(sorted(ASKED)[0], "dark")
    box = page.locator(".text_html:has(> .prediction)").first
    assert box.evaluate("(element) => getComputedStyle(element).backgroundColor") == "rgba(0, 0, 0, 0)"


def words_of(html):
    """The longer words of the text in a piece of HTML: not those of its code."""
    text = re.sub(r"<(script|style|svg|pre)\b.*?</\1>|<[^>]*>", " ", html, flags=re.S)
    return set(re.findall(r"[a-z]{5,}", unescape(text).lower()))


def test_the_search_finds_what_only_a_prediction_says():
    index = json.loads(re.search(r"\{.*\}", (SITE / "searchindex.js").read_text(encoding="utf-8"), re.S).group())
    stem = SearchEnglish({}).stem
    own = {}  # page: the words that only its predictions say
    for page in ASKED:
        html = (SITE / page).read_text(encoding="utf-8")
        said = " ".join(found.group() for found in GROUP.finditer(html))
        own[page] = {stem(word) for word in words_of(said)} - {stem(word) for word in words_of(GROUP.sub(" ", html))}
        document = index["docnames"].index(page.removesuffix(".html"))
        for word in own[page]:
            places = index["terms"].get(word, [])
            assert document in (places if isinstance(places, list) else [places]), f"{word} of {page} is not found"
    assert sum(map(len, own.values())) > len(ASKED), own
