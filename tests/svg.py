"""What the pictures of benchmarks and chaos runs are drawn with; SVG."""

from collections.abc import Mapping
from xml.etree import ElementTree as ET

PAPER, INK, FAINT = "#ffffff", "#1f2328", "#d0d7de"


def picture(width: float, height: float, title: str) -> ET.Element:
    """Begin a picture on white paper, so that it reads in dark surroundings too."""
    root = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width} {height}",
            "width": str(width),
            "height": str(height),
            "font-family": "sans-serif",
            "font-size": "12",
            "fill": INK,
        },
    )
    add(root, "title", text=title)
    rect(root, 0, 0, width, height, PAPER)
    return root


def text_of(root: ET.Element) -> str:
    """The picture as a file's text."""
    return ET.tostring(root, encoding="unicode") + "\n"


def add(
    parent: ET.Element, tag: str, attributes: Mapping[str, str] | None = None, *, text: str = ""
) -> ET.Element:
    """Add an element of any kind."""
    element = ET.SubElement(parent, tag, dict(attributes or {}))
    element.text = text or None
    return element


def rect(
    parent: ET.Element,
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    *,
    opacity: float = 1.0,
) -> None:
    """Add a filled rectangle."""
    attributes = {"x": x, "y": y, "width": width, "height": height}
    places = {name: f"{value:.2f}" for name, value in attributes.items()}
    add(parent, "rect", {**places, "fill": fill, "fill-opacity": f"{opacity:g}"})


def line(
    parent: ET.Element,
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    colour: str,
    *,
    width: float = 1,
) -> None:
    """Add a straight line."""
    attributes = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    places = {name: f"{value:.2f}" for name, value in attributes.items()}
    add(parent, "line", {**places, "stroke": colour, "stroke-width": f"{width:g}"})


def text(
    parent: ET.Element,
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    anchor: str = "start",
    weight: str = "normal",
) -> None:
    """Add a line of text."""
    attributes = {
        "x": f"{x:.2f}",
        "y": f"{y:.2f}",
        "font-size": str(size),
        "text-anchor": anchor,
        "font-weight": weight,
    }
    add(parent, "text", attributes, text=text)
