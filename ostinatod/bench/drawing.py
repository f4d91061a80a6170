"""A picture as rectangles, lines and words: written as SVG, or as PNG where Pillow is there."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

Anchor = Literal["start", "middle", "end"]

FONT_SIZE = 12
PNG_SCALE = 2
"""Pixels for each unit of a drawing."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A filled one, from its upper left corner."""

    x: float
    y: float
    width: float
    height: float
    fill: str


@dataclass(frozen=True, slots=True)
class Line:
    """A thin one, from left to right."""

    left: float
    right: float
    y: float
    colour: str


@dataclass(frozen=True, slots=True)
class Words:
    """One line of text; `x` is where it starts, has its middle, or ends, and `y` what it stands on."""

    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    is_bold: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on white, the later ones over the earlier ones."""

    width: int
    height: int
    shapes: Sequence[Rectangle | Line | Words]


def as_svg(drawing: Drawing) -> str:
    """A whole SVG document."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawing.width} {drawing.height}" '
        f'font-family="sans-serif" font-size="{FONT_SIZE}">'
    )
    ground = f'<rect width="{drawing.width}" height="{drawing.height}" fill="white"/>'
    return "\n".join([head, ground, *_svg_elements(drawing), "</svg>"]) + "\n"


def as_png(drawing: Drawing) -> bytes:
    """A PNG image. Raises ImportError without Pillow."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(FONT_SIZE * PNG_SCALE)
    image = Image.new("RGB", (drawing.width * PNG_SCALE, drawing.height * PNG_SCALE), "white")
    draw = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        if isinstance(shape, Rectangle):
            right, bottom = shape.x + shape.width, shape.y + shape.height
            draw.rectangle(tuple(PNG_SCALE * at for at in (shape.x, shape.y, right, bottom)), fill=shape.fill)
        elif isinstance(shape, Line):
            ends = tuple(PNG_SCALE * at for at in (shape.left, shape.y, shape.right, shape.y))
            draw.line(ends, fill=shape.colour, width=PNG_SCALE)
        else:
            anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
            at, weight = (PNG_SCALE * shape.x, PNG_SCALE * shape.y), int(shape.is_bold)
            draw.text(at, shape.text, fill="black", font=font, anchor=anchor, stroke_width=weight / 2)
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def _svg_elements(drawing: Drawing) -> Iterator[str]:
    for shape in drawing.shapes:
        if isinstance(shape, Rectangle):
            yield (
                f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}" '
                f'fill="{shape.fill}"/>'
            )
        elif isinstance(shape, Line):
            yield (
                f'<line x1="{shape.left:.1f}" y1="{shape.y:.1f}" x2="{shape.right:.1f}" y2="{shape.y:.1f}" '
                f'stroke="{shape.colour}"/>'
            )
        else:
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
            weight = ' font-weight="bold"' if shape.is_bold else ""
            yield f'<text x="{shape.x:.1f}" y="{shape.y:.1f}"{anchor}{weight}>{escape(shape.text)}</text>'
