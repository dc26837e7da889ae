"""What is wrong with a picture: small or overlapping text, strange colours, axes without a unit.

The test of a notebook's cell (conftest.py) looks at the figures that the cell shows, as they are
drawn: nothing is rendered twice.
"""
import contextlib
import functools
import re
from itertools import combinations

import numpy as np

from transformer_perf.plots import LIGHT, ORANGE, PALETTE, PASSES, SAVED_COLORS, TIME_PARTS, YELLOW
from transformer_perf.timeline import COMPONENTS

SMALLEST = 8           # points of a text at the size at which a page shows it
WIDEST = 960           # CSS pixels: room on a page (site.css); what is wider is shown smaller
MAPS = {'cividis', 'cividis_r', 'Blues', 'Greys'}   # colours of maps, from little to much
UNITS = {              # words of an axis that say what its numbers count
    's', 'ms', 'µs', 'days', 'MHz', 'GB', 'MB', 'B', 'GFLOP', 'TFLOP', 'FLOP', 'tokens', 'GPUs',
    'GPU', 'layers', 'samples', 'micro-batches', 'rows', 'features', 'heads', 'experts', 'stages',
    'chunks', 'pieces', 'rank', 'ranks', 'stage', 'copies', 'times', 'share', 'MFU', '%', '$',
    'passes', 'numbers', 'kB', 'work'}
RATE = re.compile(r'\w/\w')   # TFLOP/s
MEANINGS = {   # words of a legend -> their colour, in every picture
    **SAVED_COLORS, 'optimizer states': ORANGE,
    **{words: color for color, words in PASSES.values()},
    **{words: TIME_PARTS[name][0] for name, words in COMPONENTS.items()},
    'idle': LIGHT, 'waiting': LIGHT}
NUMBER = re.compile(r'\W*\d[\d.,]*\D{0,3}|\$.*\d.*\$')   # -1,000; 50 %; $10^3$


@contextlib.contextmanager
def watched():
    "What is wrong with each figure that is drawn meanwhile: dict, figure -> list of str."
    from matplotlib.backend_bases import FigureCanvasBase
    found, draw = {}, FigureCanvasBase.print_figure

    def print_figure(canvas, *args, dpi=None, **options):
        done, figure = draw(canvas, *args, dpi=dpi, **options), canvas.figure
        usual, drawn = figure.dpi, dpi if isinstance(dpi, (int, float)) else figure.dpi
        figure._set_dpi(drawn, forward=False)   # places of texts are in its pixels
        found[figure] = faults(figure, usual)
        figure._set_dpi(usual, forward=False)
        return done
    FigureCanvasBase.print_figure = print_figure
    try: yield found
    finally: FigureCanvasBase.print_figure = draw


# texts

def drawn_ticks(axis):
    "The labels of ticks that an axis draws."
    if not axis.get_visible() or not axis.axes.axison: return []
    labels = [label for tick in axis._update_ticks() for label in (tick.label1, tick.label2)]
    return [*labels, axis.label, axis.offsetText]


def legends_of(ax): return [ax.get_legend()] if ax.get_legend() else []


def texts_of(figure):  # list of Text
    "Every text that a figure shows."
    found = [*figure.texts, *(figure._suptitle and [figure._suptitle] or [])]
    legends = [*figure.legends]
    for sup in (figure._supxlabel, figure._supylabel): found += [sup] if sup else []
    for ax in figure.axes:
        if not ax.get_visible(): continue
        found += [*ax.texts, ax.title, ax._left_title, ax._right_title]
        found += [*drawn_ticks(ax.xaxis), *drawn_ticks(ax.yaxis)]
        legends += legends_of(ax)
    for legend in legends: found += [*legend.get_texts(), legend.get_title()]
    shown = [t for t in found if t.get_visible() and t.get_text().strip()]
    return list({id(t): t for t in shown}.values())


def box_of(text, renderer):
    "Where a text stands, less a pixel of air."
    box = text.get_window_extent(renderer)
    return box.x0 + 1, box.y0 + 1, box.x1 - 1, box.y1 - 1


def meet(a, b): return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def within(a, b): return b[0] <= a[0] and a[2] <= b[2] and b[1] <= a[1] and a[3] <= b[3]


def slanted(text): return text.get_rotation() % 90 != 0


def small_texts(figure, scale):
    "Texts of fewer points than can be read."
    for text in texts_of(figure):
        size = text.get_fontsize() * scale
        if size < SMALLEST - .01: yield f'{text.get_text()!r} has {size:.1f} points'


def overlapping(figure, renderer):
    "Texts that cover each other, and numbers across the frame of a panel."
    boxes = [(text, box_of(text, renderer)) for text in texts_of(figure) if not slanted(text)]
    for (a, first), (b, second) in combinations(boxes, 2):
        if meet(first, second): yield f'{a.get_text()!r} and {b.get_text()!r} overlap'
    for ax in figure.axes:
        if not (ax.axison and any(side.get_visible() for side in ax.spines.values())): continue
        frame = ax.get_window_extent(renderer).padded(2).extents
        for text, box in boxes:
            if text in ax.texts and meet(box, frame) and not within(box, frame):
                yield f'{text.get_text()!r} stands across the frame'


# colours

@functools.cache
def is_tint(rgb):  # rgb: 0 to 1
    "Whether a colour is one of ours (plots.py), or one of ours and some white."
    from matplotlib.colors import to_rgb
    given = 1 - np.array(rgb)
    for own in (1 - np.array(to_rgb(color)) for color in (*PALETTE, YELLOW)):
        share = given @ own / (own @ own)
        if share <= 1.02 and np.abs(given - share * own).max() < .02: return True
    return False


def colors_of(figure):  # yields (colour, what has it)
    "Every colour that a figure shows, but for maps."
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Text
    for artist in figure.findobj(lambda a: a.get_visible()):
        if isinstance(artist, Text):
            if artist.get_text().strip(): yield artist.get_color(), artist.get_text()
        elif isinstance(artist, Line2D):
            if artist.get_linestyle() not in ('None', '', ' '): yield artist.get_color(), 'a line'
            if artist.get_marker() not in ('None', '', ' ', None):
                yield artist.get_markerfacecolor(), 'a marker'
                yield artist.get_markeredgecolor(), 'a marker'
        elif isinstance(artist, Patch):
            if artist.get_fill(): yield artist.get_facecolor(), 'a patch'
            if artist.get_linewidth(): yield artist.get_edgecolor(), 'an edge'
        elif isinstance(artist, Collection) and artist.get_array() is None:
            for color in artist.get_facecolor(): yield color, 'a shape'


def strange_colors(figure):
    "Colours that no meaning was given to (plots.py), and maps of other colours."
    from matplotlib.colors import to_hex, to_rgba
    from matplotlib.contour import ContourSet
    for color, what in colors_of(figure):
        if isinstance(color, str) and color.lower() in ('none', 'auto'): continue
        if to_rgba(color)[3] and not is_tint(to_rgba(color)[:3]): yield f'{what} is {to_hex(color)}'
    for ax in figure.axes:
        for drawn in (*ax.images, *ax.collections):
            lines = isinstance(drawn, ContourSet)   # of one colour, whatever its map is called
            if lines or getattr(drawn, 'get_array', lambda: None)() is None: continue
            name = drawn.get_cmap().name
            if name not in MAPS: yield f'a map is drawn in {name}'


def contradictions(figure):
    "Words of a legend that have another colour than their meaning."
    from matplotlib.colors import to_hex
    legends = [*figure.legends, *(legend for ax in figure.axes for legend in legends_of(ax))]
    for legend in legends:
        for text, handle in zip(legend.get_texts(), legend.legend_handles):
            wanted, color = MEANINGS.get(text.get_text()), None
            for get in ('get_facecolor', 'get_color'):
                if color is None and hasattr(handle, get): color = getattr(handle, get)()
            if wanted and to_hex(color) != wanted:
                yield f'{text.get_text()!r} is {to_hex(color)}, not {wanted}'


# axes

def numeric(axis):
    "Whether an axis has numbers at its ticks."
    return any(NUMBER.fullmatch(label.get_text()) for label in axis.get_ticklabels())


def has_unit(name):
    "Whether the name of an axis says what it counts."
    return bool(RATE.search(name)) or not UNITS.isdisjoint(re.findall(r'[\w%$-]+', name))


def in_line(ax, axes, name):
    "The panels that share an axis with one: those of its row, or of its column."
    ends = lambda other: getattr(other.get_position(), f'interval{name}').round(2).tolist()
    return [other for other in axes if ends(other) == ends(ax)]


def without_unit(figure):
    "Axes with numbers that do not say what of."
    for ax in figure.axes:
        if not ax.get_visible() or not ax.axison: continue
        for axis, sup in ((ax.xaxis, figure._supxlabel), (ax.yaxis, figure._supylabel)):
            shown = [t for t in drawn_ticks(axis) if t.get_visible() and t.get_text().strip()]
            if not axis.get_visible() or not shown or not numeric(axis): continue
            names = [getattr(other, f'get_{axis.axis_name}label')()
                     for other in in_line(ax, figure.axes, axis.axis_name)]
            names += [sup.get_text()] if sup else []
            names = [name for name in names if name] or ['']
            if not any(map(has_unit, names)):
                yield f'the {axis.axis_name} axis says {names[0]!r}: of what unit?'


def faults(figure, dpi):  # list of str; dpi: at which a page shows it
    "Everything that is wrong with a figure as it was drawn last."
    renderer = figure._get_renderer()
    width = figure.get_tightbbox(renderer).width * dpi   # CSS pixels
    scale = min(1, WIDEST / width) * dpi / 96
    return [*small_texts(figure, scale), *overlapping(figure, renderer), *strange_colors(figure),
            *contradictions(figure), *without_unit(figure)]
