"""The built site in a browser: no page scrolls sideways, on a desktop or on a phone.

`make docs` builds the site and names its folder in SITE; elsewhere these tests are skipped.
"""

import contextlib
import functools
import html
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import cocondenser_jax

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs")]
import build_site  # noqa: E402

SITE = os.environ.get("SITE", "")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or ""
pytestmark = [
    pytest.mark.skipif(not SITE, reason="make docs builds the site and names it in SITE"),
    pytest.mark.skipif(not BROWSER, reason="neither chromium nor google-chrome is installed"),
]
WIDTHS = 1280, 390  # pixels
HEIGHT = 900

# Loads each page in a frame of a width, and writes a measure of it.
CHECK = """<!doctype html><body><pre></pre><script>
async function main() {
  const found = {};
  for (const page of PAGES) {
    const frame = document.createElement("iframe");
    frame.width = WIDTH;
    frame.height = HEIGHT;
    frame.style.border = 0;
    const loaded = new Promise(done => { frame.onload = done; });
    frame.src = page;
    document.body.append(frame);
    await loaded;
    const root = frame.contentDocument.documentElement;
    found[page] = MEASURE;
    frame.remove();
  }
  document.querySelector("pre").textContent = JSON.stringify(found);
}
main();
</script></body>"""


WIDER = "Math.max(root.scrollWidth, frame.contentDocument.body.scrollWidth) - WIDTH"
CONTENTS = "root.querySelector('.toc-drawer').getBoundingClientRect().right"


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Prints nothing."""


@contextlib.contextmanager
def served(folder):
    """Yields the address of a folder, served on this machine."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def measure(folder, pages, width, what=WIDER):
    """Returns a measure of each page in a window, by default by how many pixels it is wider."""
    check = CHECK.replace("MEASURE", what)
    check = check.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(width))
    (folder / "check.html").write_text(check.replace("HEIGHT", str(HEIGHT)), encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--window-size={width + 100},{HEIGHT}",
        "--virtual-time-budget=100000",
        "--dump-dom",
    ]
    with served(folder) as address:
        program = [BROWSER, *flags, f"{address}/check.html"]
        ran = subprocess.run(program, capture_output=True, text=True, timeout=300, check=True)
    (folder / "check.html").unlink()
    return json.loads(html.unescape(re.search(r"<pre>(\{.*?\})</pre>", ran.stdout)[1]))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_scrolls_sideways(width):
    folder = Path(SITE)
    pages = sorted(path.name for path in folder.glob("*.html"))
    assert len(pages) > 30
    found = measure(folder, pages, width)
    assert set(found) == set(pages)
    assert {page: n for page, n in found.items() if n > 0} == {}


def test_the_contents_of_a_page_are_beside_it_on_a_desktop():
    for width, is_shown in ((1280, True), (1000, False)):
        right = measure(Path(SITE), ["plan.html"], width, CONTENTS)["plan.html"]
        assert (right <= width) == is_shown


def test_a_page_that_is_too_wide_is_found(tmp_path):
    wide = '<!doctype html><div style="width: 500px">wide</div>'
    (tmp_path / "wide.html").write_text(wide, encoding="utf-8")
    assert measure(tmp_path, ["wide.html"], 390)["wide.html"] >= 110
    assert measure(tmp_path, ["wide.html"], 1280) == {"wide.html": 0}


def test_every_page_can_be_viewed_and_edited_where_it_is_written():
    """On the site some have other names; the pages that programs write have no place."""
    main = f"{build_site.repository()}/{{}}/main/"
    for source, name in build_site.PAGES.items():
        text = (Path(SITE) / f"{name}.html").read_text(encoding="utf-8")
        button = '-this-page">\n  <a class="muted-link" href="{}"'
        assert button.format(main.format("blob") + source) in text
        assert button.format(main.format("edit") + source) in text
    for name in ("api", "commands", "search", "genindex"):
        assert '-this-page">' not in (Path(SITE) / f"{name}.html").read_text(encoding="utf-8")


def test_a_public_name_links_to_its_code():
    """The line of the link is that where the definition, or its decorator, begins."""
    text = (Path(SITE) / "api.html").read_text(encoding="utf-8")
    links = re.findall(r'href="[^"]*/blob/main/(cocondenser_jax/[^"#]+)#L(\d+)"', text)
    assert len(links) >= len(cocondenser_jax.__all__)
    for file, line in links:
        code = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert re.match(r"\s*(def|class|@)", code), (file, line, code)


def test_every_page_links_to_the_repository():
    for path in Path(SITE).glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "https://github.com/cocondenser-jax/cocondenser-jax" in text, path.name
