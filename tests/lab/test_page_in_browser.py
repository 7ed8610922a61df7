"""The page in a real browser: nothing is asked of a network, tables sort, squares answer, both themes can be read."""

import shutil
from types import SimpleNamespace

import pytest
from matplotlib import rc_context
from test_page import COMMAND, ten_runs

from forgetfree.lab.report import drawing
from forgetfree.lab.report.figures import FIGURES, ink
from forgetfree.lab.report.page import page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


def squares(_):
    made, (axes,) = ink.canvas()
    ink.matrix(axes, [[part / 20 + row / 2 for part in range(10)] for row in range(2)])
    return made


MATRIX = SimpleNamespace(TITLE="Squares", measure=lambda runs: None, draw=squares, words=lambda _: "Twenty squares.")
"""A figure with squares of all shades, their values written on them."""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def tab(browser, tmp_path_factory):
    """One tab for all tests, with the page of ten runs and every figure; what it asked for and complained about."""
    root = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch, rc_context(ink.STYLE):
        patch.setattr(drawing, "FIGURES", {**FIGURES, "squares": MATRIX})
        (root / "page.html").write_text(page(ten_runs(root), command=COMMAND))
    opened = browser.new_context(has_touch=True, reduced_motion="reduce").new_page()
    opened.set_default_timeout(8000)
    asked, errors = [], []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: errors.append(message.text) if message.type != "log" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    return SimpleNamespace(page=opened, url=(root / "page.html").as_uri(), asked=asked, errors=errors)


@pytest.fixture
def shown(tab):
    """The page as a reader opens it, at a desk and in light."""
    tab.page.set_viewport_size(WIDE)
    tab.page.emulate_media(color_scheme="light", media="screen")
    tab.page.goto(tab.url)
    return tab.page


def column(shown, table, number):
    """The texts of a column of a table, from top to bottom."""
    return shown.eval_on_selector_all(
        f"{table} tbody tr > :nth-child({number})", "cells => cells.map(cell => cell.textContent.trim())"
    )


def open_all(shown):
    shown.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")


def test_it_asks_for_nothing_but_itself_and_complains_of_nothing(tab, shown):
    tab.asked.clear()
    shown.goto(tab.url)
    shown.mouse.move(700, 500)
    open_all(shown)
    assert tab.asked == [tab.url]
    assert tab.errors == []


def test_a_table_sorts_numbers_by_click(shown):
    table = "#group-1-table table"
    heading = shown.locator(f"{table} thead th", has_text="ACC")
    number = 1 + shown.locator(f"{table} thead th").all_text_contents().index("ACC")
    assert column(shown, table, number) == ["89.00 ± 0.00", "79.00 ± 0.00", "84.00"]
    heading.locator("button").click()
    assert column(shown, table, number) == ["79.00 ± 0.00", "84.00", "89.00 ± 0.00"]
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").click()
    assert column(shown, table, number) == ["89.00 ± 0.00", "84.00", "79.00 ± 0.00"]
    assert heading.get_attribute("aria-sort") == "descending"


def test_a_table_sorts_by_keyboard_and_blanks_come_last(shown):
    table = "#table-1 > .scroll:nth-of-type(1) table"
    heading = shown.locator(f"{table} thead th", has_text="CAP, file")
    number = 1 + shown.locator(f"{table} thead th").all_text_contents().index("CAP, file")
    heading.locator("button").focus()
    shown.keyboard.press("Enter")
    shown.keyboard.press("Space")
    assert heading.get_attribute("aria-sort") == "descending"
    values = [float(text.split(" ")[0]) if text else None for text in column(shown, table, number)]
    measured = [value for value in values if value is not None]
    assert len(measured) >= 2
    assert measured == sorted(measured, reverse=True)
    assert values[len(measured) :] == [None] * (len(values) - len(measured))


@pytest.mark.parametrize("name", ["CAP, paper's rule", "BWT"])
def test_published_numbers_and_ours_sort_together_below_zero_too(shown, name):
    table = "#table-1 > .scroll:nth-of-type(1) table"
    shown.locator(f"{table} thead th", has_text=name).locator("button").press("Enter")
    number = 1 + shown.locator(f"{table} thead th").all_text_contents().index(name)
    texts = [text for text in column(shown, table, number) if text not in ("", "-")]
    values = [float(text.split(" ")[0].split("?")[0]) for text in texts]
    assert len(values) > 10
    assert values == sorted(values)


def test_a_square_of_a_table_shows_its_value_when_pointed_at_reached_or_tapped(shown):
    run = shown.locator("#group-2-run-1")  # of twelve tasks: its numbers are not written out
    run.locator("> summary").click()
    status = run.locator(".status")
    run.locator(".matrix tbody tr:nth-child(5) td").nth(2).hover()
    assert status.text_content() == "After task 5, on task 3 (omniglot_rotation 3): 88.00 %"
    run.locator(".matrix tbody tr:nth-child(12) td").nth(11).tap()
    assert status.text_content() == "After task 12, on task 12 (omniglot_rotation 12): 79.00 %"
    run.locator(".matrix td[tabindex='0']").focus()
    shown.keyboard.press("ArrowUp")  # there is none
    shown.keyboard.press("ArrowLeft")
    assert status.text_content() == "After task 12, on task 11 (omniglot_rotation 11): 80.00 %"


def test_a_square_of_a_figure_shows_its_value_when_pointed_at_reached_or_tapped(shown):
    figure = shown.locator("#group-1-squares")
    status = figure.locator(".status")
    figure.locator(".cell[data-row='1'][data-column='3']").hover()
    assert status.text_content() == "row 1, column 3: 10.00 %"
    figure.locator(".cell[data-row='2'][data-column='9']").tap()
    assert status.text_content() == "row 2, column 9: 90.00 %"
    figure.locator(".cell[tabindex='0']").focus()
    shown.keyboard.press("ArrowUp")
    assert status.text_content() == "row 1, column 9: 40.00 %"


@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
def test_nothing_overflows(shown, size):
    shown.set_viewport_size(size)
    open_all(shown)
    assert shown.evaluate("document.scrollingElement.scrollWidth") <= size["width"]
    beyond = shown.evaluate(
        """() => [...document.querySelectorAll('main *, nav *, header *, footer *')]
            .filter(each => !each.closest('.scroll, .unseen') && each.getBoundingClientRect().right > innerWidth + 0.5)
            .map(each => each.outerHTML.slice(0, 80))"""
    )
    assert beyond == []


def ground(shown):
    return shown.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_theme_follows_the_system_and_the_button(shown):
    light = ground(shown)
    shown.emulate_media(color_scheme="dark")
    dark = ground(shown)
    assert dark != light
    button = shown.locator("#theme")
    assert button.text_content() == "Light"
    button.click()
    assert ground(shown) == light
    assert button.text_content() == "Dark"
    shown.emulate_media(color_scheme="light")
    button.click()
    assert ground(shown) == dark
    shown.reload()  # remembered in the page only
    assert ground(shown) == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(shown, scheme):
    shown.emulate_media(color_scheme=scheme)
    open_all(shown)
    shown.locator("#group-1-squares .cell").first.hover()
    found = shown.evaluate(CONTRASTS)
    assert found["looked"] > 500
    assert found["written_on_squares"] == 60
    assert found["faint"] == []


CONTRASTS = """() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const bright = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
      if (colour[3] > 0) throw new Error('half transparent: ' + at.outerHTML.slice(0, 80));
    }
    throw new Error('no ground');
  };
  const within = (box, [x, y]) => box.left <= x && x <= box.right && box.top <= y && y <= box.bottom;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const faint = [];
  let looked = 0, onSquares = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement, drawing = element.closest('svg');
    if (!node.data.trim() || element.closest('script, style, title, desc, .unseen, .small td, [hidden]')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (!box.width) continue;
    looked += 1;
    const style = getComputedStyle(element), middle = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    let below = behind(element), colour = parts(style.color);
    if (drawing) {
      colour = parts(style.fill);
      const square = [...drawing.querySelectorAll('.cell')].find(each => within(each.getBoundingClientRect(), middle));
      if (square) {
        below = parts(getComputedStyle(square.firstElementChild).fill);
        onSquares += 1;
      }
    }
    const [dark, light] = [bright(colour), bright(below)].sort((a, b) => a - b);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < (large ? 3 : 4.5)) faint.push(`${contrast.toFixed(2)} ${node.data.trim()} <${element.tagName}>`);
  }
  return {looked, written_on_squares: onSquares, faint: [...new Set(faint)]};
}"""
"""Texts whose contrast with what is behind them is less than WCAG AA asks for."""


def test_on_paper_everything_is_open_and_nothing_is_to_be_pressed(shown):
    shown.emulate_media(media="print", color_scheme="dark")
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown.locator("details:not([open])").count() == 0
    assert not shown.locator("#theme").is_visible()
    assert not shown.locator("nav").is_visible()
    assert shown.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(31, 35, 40)"
    shown.evaluate("dispatchEvent(new Event('afterprint'))")
    assert shown.locator("details[open]").count() == 0


def test_the_keyboard_comes_first_to_a_link_past_the_contents(shown):
    shown.keyboard.press("Tab")
    link = shown.locator(":focus")
    assert link.text_content() == "Skip to the report"
    assert link.evaluate("each => each.getBoundingClientRect().top") >= 0
    assert link.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
    shown.keyboard.press("Enter")
    assert shown.evaluate("document.activeElement.id") == "main"
