"""Colours for label maps, where a data set brings none of its own."""

from __future__ import annotations

from hamburger.data.base import Colour


def voc_palette(k: int) -> tuple[Colour, ...]:
    """VOC's colours: the bits of the class number, three at a time, fill red, green and blue from the top."""

    def colour(number: int) -> Colour:
        r = g = b = 0
        for place in range(7, -1, -1):
            r |= (number & 1) << place
            g |= (number >> 1 & 1) << place
            b |= (number >> 2 & 1) << place
            number >>= 3
        return (r, g, b)

    return tuple(colour(number) for number in range(k))
