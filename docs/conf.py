"How Sphinx makes the site. Run by docs/build.py, which writes the sources to docs/_build/source."
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import transformer_perf

project, version, html_title = 'transformer_perf', transformer_perf.__version__, 'transformer_perf'
extensions = ['myst_nb', 'sphinx.ext.mathjax', 'sphinx.ext.viewcode']
html_theme = 'sphinx_book_theme'
html_theme_options = {
    'use_download_button': False,
    'use_fullscreen_button': False,
    'show_toc_level': 2,
    'show_navbar_depth': 1,
    'navbar_persistent': [],
    'navigation_with_keys': True,
    'article_header_end': ['article-header-buttons.html'],
    'footer_content_items': '',
    'pygments_dark_style': 'github-dark',
}
html_static_path = [str(HERE / '_static'), str(HERE / '_build' / 'static')]
html_css_files, html_favicon = ['site.css'], str(HERE / '_static' / 'favicon.svg')
html_copy_source = False
add_module_names = False
toc_object_entries_show_parents, html_context = 'hide', {'default_mode': 'auto'}

viewcode_follow_imported_members = False   # a cached property is ours, not of functools

nb_render_markdown_format = 'myst'  # a Markdown output may be a table
nb_execution_mode = 'off'  # the outputs stored in the notebooks are shown; tests keep them fresh
nb_code_prompt_show, nb_code_prompt_hide = 'Show the code', 'Hide the code'
myst_enable_extensions = ['dollarmath', 'colon_fence', 'attrs_block']
myst_heading_anchors = 3
myst_links_external_new_tab = False

# from this site, never from elsewhere
mathjax_path = 'mathjax/tex-mml-chtml.js'
nb_ipywidgets_js = {'require.js': {}, 'embed-amd.js': {}}
html_js_files = ['mathjax-hub.js', 'site.js']
