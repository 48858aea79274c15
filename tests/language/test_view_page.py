"""The view as a page: what it holds, and how a real browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from radixlang import State, assistant, function, gen, select, user
from radixlang.errors import RequestError
from radixlang.views.trace_builder import trace_of

Make = Callable[..., Any]
NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
VIEWS = Path(__file__).resolve().parents[2] / "radixlang" / "views"
LEAST_CONTRAST = 4.5
THEMES = {"light": "--blink-settings=preferredColorScheme=1",
          "dark": "--blink-settings=preferredColorScheme=0"}  # fmt: skip
LOOK = """
  const style = each => getComputedStyle(document.querySelector(each));
  return { width: innerWidth, overflow:
      document.documentElement.scrollWidth - document.documentElement.clientWidth,
    branches: all("details.lane").length, page: style("body").backgroundColor,
    ink: style("body").color, seen: document.querySelector("details.lane").offsetHeight,
    requests: performance.getEntriesByType("resource").length };
"""
CONTRASTS = r"""
  all("details").forEach(each => { each.open = true; });
  root.classList.add("markup");
  const parts = text => text.match(/[\d.]+/g).map(Number);
  const channel = value => { value /= 255;
    return value <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4; };
  const light = ([red, green, blue]) =>
    .2126 * channel(red) + .7152 * channel(green) + .0722 * channel(blue);
  const behind = element => {
    for (let up = element; up; up = up.parentElement) {
      const style = getComputedStyle(up), colors = style.backgroundImage.match(/rgba?\([^)]*\)/g);
      if (colors) return colors.map(parts);
      const color = parts(style.backgroundColor);
      if (color.length < 4 || color[3] === 1) return [color];
      if (color[3]) throw new Error("half transparent: " + up.className);
    }
  };
  let least = 99, where = "", count = 0;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    if (+getComputedStyle(element).opacity !== 1) throw new Error("opacity: " + element.className);
    count++;
    const ink = light(parts(getComputedStyle(element).color));
    for (const back of behind(element).map(light)) {
      const ratio = (Math.max(ink, back) + .05) / (Math.min(ink, back) + .05);
      if (ratio < least)
        { least = ratio; where = element.className + ": " + element.textContent.slice(0, 40); }
    }
  }
  return { least, where, count };
"""


@function
def branchy(s: State, width: int = 3, depth: int = 1) -> None:
    s += user("<b>Shared</b> & common")
    s += assistant(gen("first", max_tokens=6, logprobs=True, top_logprobs=2))
    level = [s]
    for _ in range(depth):
        level = [child for parent in level for child in parent.fork(width)]
        for child in level:
            child += "side " + select("pick", ["yes", "no"]) + gen("end", max_tokens=4)


@function
def failing(s: State, secret: str = "<i>argument</i>") -> None:
    s += user("word " * 600 + secret)
    with s.fork(3) as group:
        group += lambda i: assistant(f"branch {i}" + gen("x") + gen("y"))
    s += gen("never")


def page_of(make: Make, **arguments: Any) -> str:
    return branchy.run(runtime=make(lambda p, q: "yes."), seed=1, **arguments).to_html()


def failed_page(make: Make) -> str:
    def answer(prompt: str, _: Any) -> Any:
        return RequestError("out of <tea>") if "branch 1" in prompt else "fine"

    return failing.run(runtime=make(answer), check=False).to_html()


def lanes_in(page: str) -> int:
    return page.count('<details class="lane')


# ---- what it holds


def test_page_is_whole_and_needs_no_network(fake: Make) -> None:
    page = page_of(fake)
    assert page.startswith("<!doctype html>")
    assert not re.search(r"(src|href)\s*=|@import|url\(|fetch\(|https?:", page)
    assert page.count("<details") == page.count("</details>")
    assert page.count("<div") == page.count("</div>")
    assert lanes_in(page) == 3
    assert not re.search(r"\$[a-z]\w+\b(?!\()", page)  # a place of the template left unfilled


def test_text_of_the_run_is_never_markup(fake: Make) -> None:
    page = page_of(fake)
    assert "&lt;b&gt;Shared&lt;/b&gt; &amp; common" in page
    assert "<b>Shared" not in page


@pytest.mark.parametrize("attack", ["<script>x</script>", '"><img onerror=x>', "</style><script>x"])
def test_nothing_of_a_run_becomes_markup(fake: Make, attack: str) -> None:
    @function(name=attack)
    def hostile(s: State, argument: str) -> None:
        s += user(argument)
        with s.fork(1) as group:
            group += gen(attack) + select("pick", [attack, "b"])
        s += gen(attack, logprobs=True, top_logprobs=1)

    def answer(prompt: str, _: Any) -> Any:
        return attack

    backend = fake(answer, tokens="char", model_name=attack)
    state = hostile.run(attack, runtime=backend, check=False)
    backend = fake(lambda p, q: RequestError(attack), model_name=attack)
    failed = hostile.run(attack, runtime=backend, check=False)
    for shown in (state.to_html(), failed.to_html(), state._repr_html_(), failed._repr_html_()):
        body = shown.partition("</style>")[2].partition("<script>\nconst root")[0]
        assert escape(attack) in body
        assert attack not in body


def test_roles_are_chips_and_template_text_stands_back(fake: Make) -> None:
    page = page_of(fake)
    assert '<span class="role user">user</span>' in page
    assert '<span class="role assistant">assistant</span>' in page
    assert re.search(r'<div class="words raw"><span class="\w+">&lt;\|im_start\|&gt;user', page)
    peeks = re.findall(r'<span class="peek">([^<]*)</span>', page)
    assert peeks[0].startswith("side yes")
    assert not any("im_end" in peek for peek in peeks)


def test_template_markers_that_a_program_wrote_are_its_text(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "<|im_start|>user" + gen("x")

    page = program(runtime=fake(["fine"])).to_html()
    assert '<div class="words"><span class="computed">&lt;|im_start|&gt;user' in page


def test_names_arguments_values_and_reasons_are_told(fake: Make) -> None:
    page = page_of(fake, width=2)
    assert "<dt>width</dt>" in page
    assert "<b>first</b><i>gen</i>" in page
    assert "<b>pick</b><i>select</i>" in page
    assert "<span>ended by itself</span>" in page
    assert "<span>cut at max_tokens</span>" not in page
    assert re.search(r"<span>prompt \d+, \d+ cached</span>", page)
    assert "test_view_page.py:" in page


def test_values_of_a_type_are_told_where_they_are_not_the_text(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("number", int) + gen("data", list[int])

    page = program(runtime=fake(["7", "[1,2]"])).to_html()
    assert '<div class="typed">= [1, 2]</div>' in page
    assert "= 7" not in page


def test_probabilities_and_scores_are_told(fake: Make) -> None:
    page = page_of(fake)
    notes = [unescape(note) for note in re.findall(r'data-p="([^"]*)"', page)]
    assert any(re.match(r"\d+\.\d% 'y'\n", note) for note in notes)  # a token and alternatives
    assert any("'yes'" in note and "'no'" in note for note in notes)  # a select
    options = re.findall(r'<div class="option( chosen)?"><span class="name">(\w+)</span>', page)
    assert options[:2] == [(" chosen", "yes"), ("", "no")]
    assert '<span class="num">score -' in page
    assert {"computed", "sampled", "forced"} <= set(re.findall(r'<span class="(\w+)"', page))


def test_branches_are_inside_the_fork_where_they_left(fake: Make) -> None:
    page = failed_page(fake)
    ok = branchy.run(runtime=fake(lambda p, q: "yes."), depth=1).to_html()
    assert ok.index("3 branches leave") < ok.index('id="b1"') < ok.index('id="b3"')
    assert page.index("3 branches leave") < page.index('id="b1"')

    @function
    def joins(s: State) -> None:
        with s.fork(2) as group:
            group += gen("idea")
        s += "and on"

    page = joins(runtime=fake(["one", "two"])).to_html()
    assert page.index('id="b2"') < page.index("joined as idea</div>") < page.index("and on")


def test_nested_programs_are_inside_the_step_that_called_them(fake: Make) -> None:
    @function
    def inner(s: State) -> None:
        s += "inside" + gen("y")

    @function
    def outer(s: State) -> None:
        s += "before"
        s.call(inner, scope="isolate")
        s += "after"

    page = outer(runtime=fake(["fine"])).to_html()
    places = [page.index(f">{text}<") for text in ("before", "calls inner (isolate)", "inside",
                                                   "after")]  # fmt: skip
    assert places == sorted(places)


def test_nested_branches_have_names_of_their_own(fake: Make) -> None:
    page = page_of(fake, width=2, depth=2)
    labels = re.findall(r"<summary><b>([^<]*)</b>", page)
    assert labels == ["branch 0", "branch 0.0", "branch 0.1", "branch 1", "branch 1.0",
                      "branch 1.1"]  # fmt: skip


def test_a_failed_run_has_a_page_that_says_where(fake: Make) -> None:
    page = failed_page(fake)
    assert page.count("<b>RequestError</b> <span>out of &lt;tea&gt;</span>") == 2  # above, in place
    assert re.search(r'data-to="v2-0">in branch 1</button>', page)
    assert 'class="value gen failed" id="v2-0"' in page
    assert "not reached: join x, join y, gen never" in page
    for other in ("b1", "b3"):
        assert re.search(rf'<details class="lane (done|stopped)" id="{other}"', page)


def test_partial_text_of_a_failed_generation_is_shown(fake: Make) -> None:
    @function
    def cut(s: State) -> None:
        s += gen("x", max_tokens=50)

    state = cut.run(runtime=fake(["much of a text"]), max_total_tokens=7, check=False)
    page = state.to_html()
    assert '<span class="sampled">much of</span>' in page
    assert "<b>BudgetError</b>" in page


def test_an_error_of_the_program_itself_is_at_the_end_of_the_trunk(fake: Make) -> None:
    from radixlang import on_run

    @function
    def broken(s: State) -> None:
        s += "text" + gen("x")
        assert s["x"] == "fine"
        raise KeyError("mine")

    pages: list[str] = []
    with on_run(lambda s: pages.append(s.to_html())), pytest.raises(KeyError):
        broken(runtime=fake(["fine"]))
    assert pages[0].count("<b>KeyError</b>") == 2
    assert pages[0].rindex("<b>KeyError</b>") > pages[0].index(">fine<")


def test_long_texts_are_folded(fake: Make) -> None:
    page = failed_page(fake)
    folds = re.findall(r"<details class=more><summary>([\d,]+) more characters</summary>", page)
    assert folds == ["2,115"]


def test_large_trees_start_closed_below_the_levels_that_have_room(fake: Make) -> None:
    def num_open(**arguments: int) -> int:
        return len(
            re.findall(r'<details class="lane \w+" id="b\d+" open', page_of(fake, **arguments))
        )

    assert num_open() == 3
    assert num_open(width=100) == 0
    assert num_open(width=8, depth=3) == 8 + 64  # whole levels


def test_the_branch_that_failed_is_open_in_a_large_tree(fake: Make) -> None:
    @function
    def wide(s: State) -> None:
        with s.fork(200) as group:
            group += lambda i: f"branch {i}." + gen("x")

    def answer(prompt: str, _: Any) -> Any:
        return RequestError("no") if "branch 150." in prompt else "fine"

    page = wide.run(runtime=fake(answer), check=False).to_html()
    assert re.findall(r'<details class="lane \w+" id="b(\d+)" open', page) == ["151"]


def test_page_is_written_where_it_is_asked_for(fake: Make, tmp_path: Path) -> None:
    state = branchy(runtime=fake(lambda p, q: "yes \ud800"), seed=1)
    page = state.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page.replace("\ud800", "?")


def test_a_running_program_has_a_page_that_reads_itself_again(fake: Make) -> None:
    pages: list[str] = []

    @function
    def program(s: State) -> None:
        s += "Q" + gen("x")
        assert s["x"] == "fine"
        pages.append(s.to_html())

    finished = program(runtime=fake(["fine"])).to_html()
    assert 'data-live="1500"' in pages[0]
    assert "running for" in pages[0]
    assert ">fine<" in pages[0]
    assert 'data-live=""' in finished


def test_timeline_has_a_bar_for_every_value_in_order(fake: Make) -> None:
    page = page_of(fake, width=2)
    bars = re.findall(r'data-to="(v\d+-\d+)" title="([^"]*)" style="left:([\d.]+)%', page)
    assert [bar[0] for bar in bars] == ["v0-0", "v1-0", "v1-1", "v2-0", "v2-1"]
    assert bars[0][1].startswith("trunk: first, ")
    lefts = [float(bar[2]) for bar in bars]
    assert lefts[0] == 0.0
    assert lefts[0] <= lefts[1] <= lefts[2]
    assert all(0 <= left <= 100 for left in lefts)


def test_first_tokens_lie_inside_their_generations(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("a")
        for branch in s.fork(2):
            branch += gen("b")

    state = program(runtime=fake(lambda p, q: "an answer of some length", delay=0.002))
    values = [value for _, value in trace_of(state._run()).values()]
    assert len(values) == 3
    for value in values:
        assert value.first_s is not None
        assert value.start_s < value.first_s < value.end_s  # type: ignore[operator]
    page = state.to_html()
    assert page.count("<span>first token ") == 3
    assert len(re.findall(r"--wait:[1-9]\d?%", page)) == 3


# ---- in a notebook


def test_notebook_cell_follows_the_theme_and_has_no_script(fake: Make) -> None:
    cell = branchy(runtime=fake(lambda p, q: "yes."))._repr_html_()
    assert cell.startswith('<div class="rl cell"><style>')
    assert '[data-jp-theme-light="false"] .rl' in cell
    assert "<script" not in cell
    assert "data-p=" not in cell.partition("</style>")[2]
    assert 'title="' in cell


def test_rules_of_a_cell_touch_nothing_else_of_the_notebook() -> None:
    rules = re.sub(r"@media[^{]*\{|/\*.*?\*/", "", (VIEWS / "trace.css").read_text("utf-8"))
    for selectors in re.findall(r"([^{}]+)\{", rules):
        assert all(".rl" in selector for selector in selectors.split(",")), selectors


# ---- in a browser


def shown(tmp_path: Path, page: str, width: int, *flags: str, probe: str = LOOK) -> dict[str, Any]:
    """What a probe returns from the page, in a frame of this width of a headless browser."""
    if BROWSER is None:
        pytest.skip("no chromium here to look at the page with; apt-get install chromium")
    script = (
        "<script>onload = () => { let report; try { report = (() => {" + probe + "})(); }"
        " catch (error) { report = { error: String(error) }; }"
        " parent.document.body.dataset.report = JSON.stringify(report); };</script>"
    )
    frame = (
        f'<iframe style="width:{width}px;height:800px;border:0" srcdoc="{escape(page + script)}">'
    )
    file = tmp_path / "frame.html"
    file.write_text(f"<!doctype html><body>{frame}</iframe></body>", encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", *flags,
               f"--user-data-dir={tmp_path}/p", "--virtual-time-budget=20000",
               file.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<body data-report="([^"]*)"', done.stdout)
    assert found is not None, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(unescape(found[1]))
    assert "error" not in report, report
    return report


def brightness(color: str) -> float:
    red, green, blue = (int(part) for part in re.findall(r"\d+", color)[:3])
    return 0.3 * red + 0.6 * green + 0.1 * blue


@pytest.mark.parametrize("width", [390, 1200])
def test_browser_shows_it_light_at_any_width(fake: Make, tmp_path: Path, width: int) -> None:
    report = shown(tmp_path, page_of(fake), width, THEMES["light"])
    assert (report["width"], report["overflow"], report["branches"]) == (width, 0, 3)
    assert report["requests"] == 0
    assert brightness(report["page"]) > 200 > 60 > brightness(report["ink"])


def test_browser_shows_it_dark_with_2000_branches(fake: Make, tmp_path: Path) -> None:
    page = page_of(fake, width=2, depth=10)  # 2 + 4 + … + 1,024
    report = shown(tmp_path, page, 390, THEMES["dark"])
    assert (report["branches"], report["overflow"]) == (2046, 0)
    assert brightness(report["page"]) < 60 < 200 < brightness(report["ink"])
    assert report["seen"] > 0


@pytest.mark.parametrize("theme", THEMES)
def test_every_text_has_contrast(fake: Make, tmp_path: Path, theme: str) -> None:
    for number, page in enumerate((page_of(fake, depth=2), failed_page(fake))):
        (tmp_path / str(number)).mkdir()
        report = shown(tmp_path / str(number), page, 1200, THEMES[theme], probe=CONTRASTS)
        assert report["count"] > 60
        assert report["least"] >= LEAST_CONTRAST, report


def test_colours_that_are_texts_have_contrast_by_their_numbers() -> None:
    rules = (VIEWS / "trace.css").read_text(encoding="utf-8")
    pairs = dict(re.findall(r"--([\w-]+): (light-dark\([^)]*\))", rules))
    inks = ("ink", "soft", "accent", "cached", "computed", "sampled", "forced", "error")
    own = {"sampled": "sampled-back", "forced": "forced-back", "error": "error-back"}
    marked = ("mark", "mark-now", "bar", "bar-wait", "bar-select", "bar-error")
    wanted = [(ink, back) for ink in inks for back in ("page", "card", own.get(ink, "hover"))]
    for ink, back in [*wanted, *(("ink", back) for back in marked)]:
        inked, backed = (re.findall(r"#[0-9a-f]{6}", pairs[name]) for name in (ink, back))
        for front, behind in zip(inked, backed, strict=True):
            assert contrast(front, behind) >= LEAST_CONTRAST, (ink, back)


def contrast(first: str, second: str) -> float:
    """The ratio of luminances by WCAG, 1 to 21."""

    def luminance(color: str) -> float:
        values = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_find_marks_words_and_opens_what_they_are_in(fake: Make, tmp_path: Path) -> None:
    probe = """
      all("details").forEach(each => { each.open = false; });
      search("SIDE yes");
      const none = places.length;
      search("side");
      const found = places.map(String), closed = all("details.lane[open]").length;
      step(1);
      const first = [places[at].startContainer.parentElement.closest("details.lane").open,
                     one("count").value];
      step(-1);
      return { none, found, closed, first, last: one("count").value,
        marked: highlights.get("found").size, hits: all(".lane.hit").length };
    """
    report = shown(tmp_path, page_of(fake), 1200, probe=probe)
    assert report["none"] == 0  # a text and an answer are two places
    assert report["found"] == ["side"] * 3
    assert (report["closed"], report["first"]) == (0, [True, "1 of 3"])
    assert (report["last"], report["marked"], report["hits"]) == ("3 of 3", 3, 3)


def test_find_crosses_tokens_and_folds_and_takes_any_text(fake: Make, tmp_path: Path) -> None:
    @function
    def program(s: State) -> None:
        s += "a+b (c) [d]* \\ $& word " * 100 + gen("x", logprobs=True)

    probe = """
      const found = {};
      for (const words of ["one two", "(c) [d]*", "\\\\ $&", "ÉTÉ", "absent"]) {
        search(words); found[words] = places.map(String);
      }
      return { found, tokens: all(".made [data-p]").length };
    """
    page = program(runtime=fake(["one two été"], tokens="char")).to_html()
    report = shown(tmp_path, page, 1200, probe=probe)
    found = report["found"]
    assert report["tokens"] == len("one two été")
    assert found["one two"] == ["one two"]
    assert found["ÉTÉ"] == ["été"]
    assert len(found["(c) [d]*"]) == len(found["\\ $&"]) == 100
    assert set(found["\\ $&"]) == {"\\ $&"}
    assert found["absent"] == []


def test_page_can_be_used_by_keyboard_alone(fake: Make, tmp_path: Path) -> None:
    probe = """
      const press = (target, key) => target.dispatchEvent(
        new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      press(document.body, "/");
      const finder = document.activeElement.id;
      bars[0].focus();
      press(bars[0], "ArrowRight");
      const bar = bars.indexOf(document.activeElement);
      document.activeElement.click();
      const value = document.activeElement.id;
      const text = document.querySelector(".made[tabindex]");
      text.focus();
      press(text, "ArrowRight");
      press(text, "ArrowRight");
      const told = tip.textContent, visible = tip.style.display;
      press(text, "Escape");
      const inTabOrder = all("a, button, input, summary, [tabindex]").filter(e => e.tabIndex >= 0);
      return { finder, bar, value, told, visible, gone: tip.style.display,
        bars: inTabOrder.filter(e => e.classList.contains("bar")).length,
        folds: all("summary").every(e => inTabOrder.includes(e)) };
    """
    report = shown(tmp_path, page_of(fake), 1200, probe=probe)
    assert report["finder"] == "find"
    assert (report["bar"], report["value"]) == (1, "v1-0")
    assert re.match(r"\d+\.\d% 'e'\n", report["told"])
    assert (report["visible"], report["gone"]) == ("block", "none")
    assert (report["bars"], report["folds"]) == (1, True)


def test_notebook_cell_is_dark_in_a_dark_notebook(fake: Make, tmp_path: Path) -> None:
    cell = branchy(runtime=fake(lambda p, q: "yes."))._repr_html_()
    probe = """
      const style = getComputedStyle(document.querySelector(".rl"));
      return { back: style.backgroundColor, ink: style.color };
    """
    for number, (mark, is_dark) in enumerate((("false", True), ("true", False))):
        (tmp_path / str(number)).mkdir()
        page = f'<!doctype html><body data-jp-theme-light="{mark}">{cell}</body>'
        report = shown(tmp_path / str(number), page, 900, THEMES["light" if is_dark else "dark"],
                       probe=probe)  # fmt: skip
        assert (brightness(report["back"]) < brightness(report["ink"])) is is_dark
