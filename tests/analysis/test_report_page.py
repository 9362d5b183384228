"""The report in a real browser: it works alone, by keyboard, in the dark, on a phone and on paper."""

import shutil
import threading

import pytest

from rl_training.analysis import report
from toys import written_run

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: run scripts/browser.sh")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of two algorithms on two environments, one of them failed."""
    folder = tmp_path_factory.mktemp("page") / "runs"
    for seed in range(1, 4):
        for algo, top in (("ppo", 100.0), ("dqn", 60.0)):
            for env_id in ("CartPole-v1", "Acrobot-v1"):
                points = [(step, top * step / 200 + seed) for step in range(10, 201, 10)]
                written_run(folder, algo, env_id, seed, points, episodes=points, learning_rate=1e-3)
    bad = written_run(folder, "ppo", "CartPole-v1", 4, [(10, 1.0)], status="failed", learning_rate=1e-3)
    (bad / "error.txt").write_text("KeyError: 'wheel'")
    return folder


@pytest.fixture(scope="module")
def file(folder):
    report.write([folder], folder.parent / "report.html")
    return folder.parent / "report.html"


@pytest.fixture
def visit(browser, file):
    """``visit(viewport=PHONE, color_scheme="dark")``: the page, which must ask for nothing and complain of nothing."""
    contexts, complaints = [], []

    def visit(url=None, **options):
        contexts.append(browser.new_context(**{"viewport": DESKTOP, **options}))
        page = contexts[-1].new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: complaints.append(request.url) if request.url.startswith("http") and not url else None,
        )
        page.goto(url or file.as_uri())
        page.wait_for_selector(".uplot canvas")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not complaints


def names(page):
    return page.locator("#run-table tbody tr:visible th").all_inner_texts()


def test_every_environment_has_a_chart_with_ink_on_it(visit):
    page = visit()
    assert page.locator(".environment h3").all_inner_texts() == ["Acrobot-v1", "CartPole-v1"]
    inked = """canvas => new Set(new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"""
    for i in range(2):
        assert page.locator(".uplot canvas").nth(i).evaluate(inked) > 50


def test_runs_are_sorted_and_filtered(visit):
    page = visit()
    assert len(names(page)) == 13
    page.get_by_role("button", name="Last return").click()
    assert names(page)[0] == "ppo__CartPole-v1__seed4__learning_rate=0.001"
    page.get_by_role("button", name="Last return").click()
    assert "seed3" in names(page)[0] and page.locator("th[aria-sort=descending]").inner_text() == "Last return"
    page.get_by_role("searchbox", name="Filter").fill("dqn acrobot")
    assert len(names(page)) == 3 and page.locator("#matches").inner_text() == "3 of 13"


def test_curves_are_toggled_and_read_by_keyboard_alone(visit):
    page = visit()
    chart, reading = page.locator(".chart").first, page.locator(".reading").first
    chart.focus()
    page.keyboard.press("ArrowRight")
    assert reading.inner_text().startswith("Step 10: ppo 7 [")
    page.keyboard.press("ArrowRight")
    assert reading.inner_text().startswith("Step 20: ")
    page.keyboard.press("Tab")  # the table's scrolling region, then its first button
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText").strip() == "ppo"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"
    chart.focus()
    page.keyboard.press("ArrowRight")
    assert "dqn" in reading.inner_text() and "ppo" not in reading.inner_text()


def test_hovering_shows_values_and_views_change(visit):
    page = visit()
    over = page.locator(".u-over").first
    over.hover(position={"x": over.bounding_box()["width"] - 2, "y": 50})
    assert page.locator("td.at").first.inner_text().startswith("102 [")
    page.get_by_text("Performance profile", exact=True).click()
    over = page.locator(".u-over").first
    over.hover(position={"x": 2, "y": 50})
    assert "Above a return of" in page.locator(".reading").first.inner_text()


def test_two_groups_are_compared(visit):
    page = visit()
    assert "P(A > B) = 1.00 [1.00, 1.00]; IQM of A − B = 40" in page.locator("#verdict").inner_text()
    assert page.locator("#verdict table").nth(1).inner_text().split() == ["Option", "A", "B", "algo", "ppo", "dqn"]
    page.locator("#pick-a").select_option(label="dqn")
    page.locator("#pick-b").select_option(label="ppo")
    assert "P(A > B) = 0.00" in page.locator("#verdict").inner_text()


def test_everything_that_can_be_used_has_a_name(visit):
    page = visit()
    nameless = """() => [...document.querySelectorAll("button, select, input, [tabindex], a")]
        .filter(e => !(e.innerText || e.ariaLabel || e.labels?.length || e.querySelector("table"))).map(e => e.outerHTML)"""
    assert page.evaluate(nameless) == []
    assert page.locator("h1").count() == 1 and page.locator("html").get_attribute("lang") == "en"


def test_the_dark_page_is_dark_and_its_print_is_light(visit):
    luminance = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 3"
    assert visit().evaluate(luminance) > 230
    page = visit(color_scheme="dark")
    assert page.evaluate(luminance) < 50
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(luminance) == 255
    assert not page.locator("nav").is_visible() and page.locator(".uplot canvas").first.is_visible()


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_nothing_sticks_out_of_the_window(visit, viewport):
    page = visit(viewport=viewport)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert page.locator(".uplot").first.bounding_box()["width"] <= viewport["width"]


def test_a_live_page_follows_its_runs_and_keeps_what_was_chosen(visit, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "runs")
    with report.server([tmp_path / "runs"]) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        page = visit(f"http://127.0.0.1:{http.server_address[1]}/")
        page.get_by_role("searchbox", name="Filter").fill("iqn")
        assert names(page) == []
        written_run(tmp_path / "runs", "iqn", "Acrobot-v1", 1, [(100, 5.0), (200, 321.0)], status="running")
        page.locator("#run-table td", has_text="321").wait_for()
        assert names(page) == ["iqn__Acrobot-v1__seed1"]
        assert page.locator(".standings").first.locator("tbody th").first.inner_text().strip() == "iqn"
        http.shutdown()
