"""What is wrong with a picture is seen: each fault by itself, and none where there is none.

(Every picture of the notebooks is looked at where its cell is run, conftest.py.)"""
import matplotlib.pyplot as plt
import pytest

import conftest
import drawings
from transformer_perf.plots import BLUE, GREEN, ORANGE, style


def faults_of(draw, dpi=None, **options):
    "What is wrong with a picture as IPython saves it."
    with style(), drawings.watched() as found:
        fig, ax = plt.subplots(figsize=(4, 3), **options)
        ax.plot([1, 2], [1, 3], color=BLUE, label='a line')
        ax.set(xlabel='time (s)', ylabel='GPUs')
        draw(ax)
        fig.canvas.print_figure('/dev/null', format='png', dpi=dpi, bbox_inches='tight')
        plt.close(fig)
    (own,) = found.values()
    return own


def test_a_good_picture_has_no_faults():
    assert faults_of(lambda ax: ax.legend()) == faults_of(lambda ax: ax.legend(), 192) == []


@pytest.mark.parametrize('draw, said', {
    'small': (lambda ax: ax.text(1.2, 2, 'fine print', fontsize=7), "'fine print' has 7.0 points"),
    'over': (lambda ax: [ax.text(1.2, 2, w) for w in ('first', 'second')], 'overlap'),
    'frame': (lambda ax: ax.text(1.99, 2, 'out of the panel'), 'stands across the frame'),
    'color': (lambda ax: ax.plot([1, 2], color='#1f77b4'), 'a line is #1f77b4'),
    'patch': (lambda ax: ax.bar([1], [2], color='purple'), 'a patch is #800080'),
    'words': (lambda ax: ax.text(1.2, 2, 'x', color='lime'), 'x is #00ff00'),
    'dots': (lambda ax: ax.scatter([1], [2], color='lime'), 'a shape is #00ff00'),
    'map': (lambda ax: ax.imshow([[1, 2], [3, 4]], cmap='jet'), 'a map is drawn in jet'),
    'meaning': (lambda ax: (ax.bar([1], [2], color=GREEN, label='bubble'), ax.legend()),
                "'bubble' is #009e73, not #bbbbbb"),
    'unit': (lambda ax: ax.set(ylabel='speed'), "the y axis says 'speed': of what unit?"),
    'nothing': (lambda ax: ax.set(xlabel=''), "the x axis says '': of what unit?"),
}.values())
def test_a_fault_is_seen(draw, said):
    found = faults_of(draw)
    assert len(found) == 1 and said in found[0], found


def test_a_wide_picture_is_shown_smaller():
    "An 8-point text in a picture of 1,920 pixels has 4 points on a page of 960."
    def wide(ax):
        ax.figure.set_size_inches(20, 3)
        ax.text(1.2, 2, 'words', fontsize=8)
    assert any(fault.startswith("'words' has 4") for fault in faults_of(wide))


@pytest.mark.parametrize('color, ours', [
    (BLUE, True), ('white', True), ('#bbbbbb', True), ('#80b8d8', True), ('#1f77b4', False),
    ('navy', False), ('#ffcccc', False)])
def test_tints_are_ours(color, ours):
    from matplotlib.colors import to_rgb
    assert drawings.is_tint(to_rgb(color)) == ours


def test_one_meaning_has_one_colour():
    "Memory, passes and parts of time: within each, no colour twice."
    from transformer_perf.plots import PASSES, SAVED_COLORS, TIME_PARTS
    passes, parts = ([own[0] for own in of.values()] for of in (PASSES, TIME_PARTS))
    for family in (SAVED_COLORS.values(), passes, parts):
        assert len({*family}) == len([*family])
    assert drawings.MEANINGS['optimizer'] == drawings.MEANINGS['optimizer states'] == ORANGE
    assert drawings.MEANINGS['bubble'] == drawings.MEANINGS['waiting']


@pytest.mark.parametrize('shown', ['fig', 'plt.show()'])
def test_the_test_of_a_cell_looks_at_its_picture(shown, tmp_path):
    "As the tests of notebooks draw it, for no file; and a picture that is not shown is let be."
    from nbformat import v4
    draw = (f'from matplotlib import pyplot as plt\n'
            f'fig, ax = plt.subplots()\nax.set(ylabel="speed", xlabel="GPUs")\n{shown}')
    hidden = 'fig = plt.figure()\nfig.text(0, 0, "x", fontsize=5)\nplt.close()'
    book = v4.new_notebook(cells=[v4.new_code_cell(source) for source in (draw, hidden)])
    path = tmp_path / 'drawn.ipynb'
    path.write_text(v4.writes(book))
    notebook = conftest.Tested(path)
    notebook.run_to(1)
    assert notebook.faults == {0: ["the y axis says 'speed': of what unit?"], 1: []}
