"""What a plot shows, read from its SVG."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np


def drawn_lines(svg):
    """Returns the points [T, 2] of every unfilled path, by stroke."""
    lines = {}
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"):
        style = dict(re.findall(r"([\w-]+): ([^;]+)", element.get("style", "")))
        if style.get("fill") == "none" and "stroke" in style:
            numbers = re.findall(r"-?[\d.]+", element.get("d", ""))
            points = np.array(numbers, dtype=float).reshape(-1, 2)
            lines.setdefault(style["stroke"], []).append(points)
    return lines
