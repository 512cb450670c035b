"""The page as a file: nothing from elsewhere, and text that stays text."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from dograph.report.collect import collect, open_subjects
from dograph.report.render import HTML_SAFE, SCRIPTS, asset, render
from page_runs import HOSTILE, dograph_run, hostile_corpus, texts_of


class Elements(HTMLParser):
    """What a browser would see: every start tag with its attributes, and contents of scripts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.contents, self.inside = [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag in ("script", "style")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.contents.append((self.tags[-1], data))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    corpus = hostile_corpus(folder / "corpus")
    run = dograph_run(folder / '<img src=x onerror="alert(1)">', corpus)
    data = collect(open_subjects([run]))
    return data, render(data)


def test_json_cannot_end_its_element():
    text = json.dumps(list(HOSTILE), ensure_ascii=False).translate(HTML_SAFE)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == list(HOSTILE)


def strings(value):
    """All strings in JSON values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def test_hostile_text_adds_no_element(page):
    data, written = page
    elements = Elements(written)
    kinds = [tag for tag, _ in elements.tags]
    assert kinds.count("script") == 2
    assert kinds.count("style") == 1
    assert "img" not in kinds
    assert not any(name.startswith("on") for _, attrs in elements.tags for name in attrs)
    told = next(
        text for (tag, attrs), text in elements.contents if attrs.get("type") == "application/json"
    )
    texts = texts_of(data)
    assert set(texts) <= set(strings(json.loads(told)))
    for part in HOSTILE[:-1]:
        assert any(part in text for text in texts)


def test_a_long_line_does_not_make_a_long_page(page):
    data, written = page
    assert len(written) < 400_000
    assert any(text.endswith(" …") for text in texts_of(data))


def test_the_policy_allows_this_script_and_style_alone(page):
    _, written = page
    elements = Elements(written)
    rules = next(
        attrs["content"]
        for tag, attrs in elements.tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert rules.startswith("default-src 'none'; ")
    assert "unsafe" not in rules
    assert "connect-src" not in rules
    for (tag, attrs), text in elements.contents:
        if attrs.get("type") != "application/json":
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in rules


def test_nothing_is_asked_of_the_network(page):
    _, written = page
    for tag, attrs in Elements(written).tags:
        for name in ("src", "href", "srcset", "data", "action"):
            assert attrs.get(name, "#").startswith(("#", "data:")), (tag, attrs)
    code = "".join(asset(name) for name in SCRIPTS)
    assert set(re.findall(r"https?://[^\"'`\s]+", code)) == {"http://www.w3.org/2000/svg"}


def test_scripts_write_text_and_no_markup():
    for name in SCRIPTS:
        code = asset(name)
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", code
        )
        assert len(code.splitlines()) <= 300
        for function in re.finditer(r"^(?:async )?function (\w+).*?^}", code, re.M | re.S):
            assert function[0].count("\n") < 60, (name, function[1])
    for name in ("page.css", "page.html"):
        assert "@import" not in asset(name)
        assert "url(" not in asset(name)


def test_a_live_page_may_ask_its_server(page):
    data, _ = page
    live = render(data, live=True)
    assert "connect-src &#x27;self&#x27;" in live
    assert 'data-live="yes"' in live
