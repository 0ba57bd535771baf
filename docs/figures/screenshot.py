"""Takes a picture of a page: python docs/figures/screenshot.py runs/quickstart/report.html OUT.svg.

Chromium draws it for a light and for a dark screen; the SVG file shows the one that fits. Needs
chromium and Pillow.
"""

import base64
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

WIDTH = 1000
HEIGHT = 960  # of the quickstart's report: up to the first row of curves, which is whole
COLORS = 64  # of a screenshot; enough for text and curves, at half of the size
SCHEMES = {"dark": 0, "light": 1}  # as Chromium's preferredColorScheme numbers them


def screenshot(page: Path, scheme: str) -> str:
    """Returns a picture of a page in one color scheme, as the address of its own data."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.png"
        flags = [
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            f"--window-size={WIDTH},{HEIGHT}",
            f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
            f"--screenshot={path}",
        ]
        program = ["chromium", *flags, page.resolve().as_uri()]
        subprocess.run(program, check=True, capture_output=True, timeout=120)
        image = Image.open(path).convert("RGB").quantize(COLORS)
    file = io.BytesIO()
    image.save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def main() -> None:
    """Writes the picture of the page that the command line names."""
    page, out = map(Path, sys.argv[1:])
    images = "".join(
        f'<image class="{scheme}" width="{WIDTH}" height="{HEIGHT}" href="{data}"/>\n'
        for scheme, data in ((name, screenshot(page, name)) for name in SCHEMES)
    )
    out.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" role="img" aria-labelledby="title">\n'
        f'<title id="title">{page.name}</title>\n'
        "<style>.dark { display: none } @media (prefers-color-scheme: dark) {"
        " .dark { display: inline } .light { display: none } }</style>\n"
        f"{images}</svg>\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
