"""Pictures of several panels, for a phone: one panel below the other, each as large as drawn.

A picture is cut at the blank columns between its panels. Its file stays whole: on a narrow screen
(docs/_static/site.css) the page shows a view of each part, elsewhere the picture as it is. A
picture with `#| fig-class: narrow` fits as it is.
"""
import re
from itertools import pairwise

import numpy as np

LETTERS, NEAR, SMALL = 4, 9, 75   # CSS pixels: less is one part, one part with a panel, no panel
WHOLE = re.compile(r'<img alt="([^"]*)" height="\d+" src="(_images/\w+\.png)" width="(\d+)" />')


def ink_of(file):  # a flag for each pixel
    "What is not white in a picture."
    from PIL import Image
    return np.asarray(Image.open(file).convert('L')) < 250


def inked(blank):  # list of (start, end)
    "Where a line of flags is not blank."
    edges = np.flatnonzero(np.diff(np.r_[True, blank, True].astype(int)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))


def framed(ink):  # a flag for each column of pixels
    "Where the side of a panel stands: a line down at least a sixth of the picture."
    now = tallest = np.zeros(ink.shape[1])
    for row in ink:
        now = (now + 1) * row
        tallest = np.maximum(tallest, now)
    return tallest > len(ink) / 6


def belong(a, b, frames, scale):
    "Whether two neighbours are one part: letters, a panel and its labels, a map and its colours."
    gap, sides = (b[0] - a[1]) / scale, [frames[slice(*part)].any() for part in (a, b)]
    small = any(end - start < SMALL * scale for start, end in (a, b))
    return gap < LETTERS or (small if all(sides) else gap < NEAR)


def parts_of(ink, scale):  # list of (start, end); ink: flags of pixels; scale: pixels for a CSS one
    "The panels of a picture from left to right, and what stands apart from them: a legend."
    parts, frames = inked(~ink.any(axis=0)), framed(ink)
    while True:
        pairs = sorted(pairwise(parts), key=lambda pair: pair[1][0] - pair[0][1])
        a, b = next((pair for pair in pairs if belong(*pair, frames, scale)), (None, None))
        if a is None: return parts
        at = parts.index(a)
        parts[at:at + 2] = [(a[0], b[1])]


def windows(ink, scale):  # list of (left, right, top, bottom)
    "Each part with the margin of a picture, and no blank above it and below."
    (height, width), margin = ink.shape, round(LETTERS * scale)
    parts = parts_of(ink, scale)
    cuts = [0, *((a[1] + b[0]) // 2 for a, b in pairwise(parts)), width]
    rows = [np.flatnonzero(ink[:, a:b].any(axis=1)) for a, b in pairwise(cuts)]
    return [(a, b, max(own[0] - margin, 0), min(own[-1] + margin, height))
            for a, b, own in zip(cuts, cuts[1:], rows)]


def view(source, size, window, scale):
    "A window, and the whole picture moved behind it."
    (height, width), (left, right, top, bottom) = size, window
    share = lambda start, own, whole: f'{100 * start / max(whole - own, 1):.2f}%'
    across, down = share(left, right - left, width), share(top, bottom - top, height)
    return (f'<span style="width: {(right - left) / scale:.0f}px; aspect-ratio: {right - left} / '
            f'{bottom - top}; background: #fff url({source}) {across} {down} / '
            f'{100 * width / (right - left):.2f}%"></span>')


def stacked(page, folder):  # str
    "A page with its pictures of several parts twice: whole, and for narrow screens in parts."
    def both(found):
        alt, source, width = found.groups()
        ink = ink_of(folder / source)
        scale = ink.shape[1] / int(width)
        shown = [view(source, ink.shape, own, scale) for own in windows(ink, scale)]
        if len(shown) == 1: return found[0]
        whole = found[0].replace('<img ', '<img class="whole" ')
        return f'{whole}<span class="parts" role="img" aria-label="{alt}">{"".join(shown)}</span>'
    return WHOLE.sub(both, page)
