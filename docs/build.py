"""Build the documentation site: `python docs/build.py` makes docs/_build/html.

The site needs no network to be read. Building it needs the extra `docs` (pip install -e '.[docs]')
and, for the first time, npm: MathJax and the widget scripts become part of the site.
"""
import json
import re
import shutil
import subprocess
import sys
import tarfile
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / 'tools')]
import pages
import pictures
import play
from notebooks import NOTEBOOKS, ROOT

BUILD = HERE / '_build'
SOURCE, STATIC, HTML, PACKAGES = (BUILD / name for name in ('source', 'static', 'html', 'npm'))
MATHJAX = ('input', 'output/chtml', 'a11y', 'sre', 'ui')
VENDORED = {  # npm package, version -> what of it goes into the site, and where
    ('mathjax', '3.2.2'): {'es5/tex-mml-chtml.js': 'mathjax/tex-mml-chtml.js',
                           **{f'es5/{part}': f'mathjax/{part}' for part in MATHJAX}},
    ('requirejs', '2.3.7'): {'require.js': 'require.js'},
    ('@jupyter-widgets/html-manager', '1.0.15'): {'dist': '.'},
}


def fail(why): raise SystemExit(f'docs/build.py: {why}')


# the sources

def fetched(name, version):  # Path of the unpacked package
    "A package from npm, fetched once."
    archive = PACKAGES / f'{name.lstrip("@").replace("/", "-")}-{version}.tgz'
    if not archive.exists(): fetch(name, version, archive)
    unpacked = PACKAGES / archive.stem
    if not unpacked.exists():
        with tarfile.open(archive) as tar: tar.extractall(unpacked, filter='data')
    return unpacked / 'package'


def fetch(name, version, archive):
    "Have npm write a package's archive."
    npm = shutil.which('npm')
    if npm is None:
        fail(f'npm is missing; it is needed once, to fetch {name} {version} '
             '(on Debian: apt-get install npm)')
    PACKAGES.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [npm, 'pack', '--silent', f'{name}@{version}', '--pack-destination', str(PACKAGES)],
        check=False, capture_output=True, text=True)
    if done.returncode or not archive.exists():
        said = done.stderr.strip() or done.stdout.strip()
        fail(f'npm could not fetch {name} {version}: {said}')


def vendor():
    "Put the scripts that pages need into the static files."
    for (name, version), parts in VENDORED.items():
        package = fetched(name, version)
        for part, place in parts.items(): put(package / part, STATIC / place)


def put(source, place):
    "Copy a file or a folder."
    if source.is_dir():
        shutil.copytree(source, place, dirs_exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, place)


def write_sources():
    "Notebooks, pages and API as Sphinx reads them."
    for folder in (SOURCE, STATIC, HTML): shutil.rmtree(folder, ignore_errors=True)
    for folder in (SOURCE / 'api', STATIC / 'notebooks'): folder.mkdir(parents=True)
    for folder in (SOURCE, STATIC / 'notebooks'):
        shutil.copytree(ROOT / 'nbs' / 'images', folder / 'images')
    for path in NOTEBOOKS:
        (SOURCE / path.name).write_text(json.dumps(pages.page(path)), encoding='utf-8')
        shutil.copy(path, STATIC / 'notebooks')
    for path in HERE.glob('*.md'): shutil.copy(path, SOURCE)
    (STATIC / 'play-data.js').write_text(play.script(), encoding='utf-8')
    (STATIC / 'play-maps.js').write_text(play.calibrated_script(), encoding='utf-8')
    for name, text in pages.api().items(): (SOURCE / name).write_text(text, encoding='utf-8')


# the site

LEADING = {'search', 'next', 'prev', 'index', 'author', 'canonical'}   # links that load nothing


class Links(HTMLParser):
    "What a page loads, where it leads, and the places in it that others may lead to."
    def __init__(self, text):
        super().__init__()
        self.loads, self.leads, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[key] for key in ('id', 'name') if attrs.get(key)}
        if tag == 'a' or (tag == 'link' and attrs.get('rel') in LEADING):
            self.leads.append(attrs.get('href'))
            return
        self.loads += [attrs.get('src'), attrs.get('data')]
        if tag == 'link': self.loads.append(attrs.get('href'))


def fault_of(url, path, found):  # str, empty where there is none
    "What is wrong with a link of a page; `found` are the links of all pages."
    parts, loads = urlsplit(url), url in found[path].loads
    if parts.scheme or parts.netloc:
        return f' loads {url}' if loads and parts.scheme != 'data' else ''
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file(): return f': {url} does not exist'
    known = target not in found or unquote(parts.fragment) in found[target].ids
    return '' if known or not parts.fragment else f': {url} leads to no such place'


def faults_of_styles(folder):  # yields faults
    "Style sheets that load something from elsewhere."
    for path in folder.rglob('*.css'):
        far = r'(?:url\(|@import)\s*["\']?((?:https?:)?//[^"\')\s]+)'
        for url in re.findall(far, path.read_text(encoding='utf-8')):
            yield f'{path.relative_to(folder)} loads {url}'


def check_site(folder):  # list of faults
    "Pages load nothing from elsewhere, and every link within the site leads somewhere."
    found = {path: Links(path.read_text(encoding='utf-8')) for path in folder.rglob('*.html')}
    faults = set(faults_of_styles(folder))
    for path, links in found.items():
        for url in filter(None, links.loads + links.leads):
            fault = fault_of(url, path, found)
            if fault: faults.add(f'{path.relative_to(folder)}{fault}')
    return sorted(faults)


def run_sphinx():
    "Make the pages; a warning is a fault."
    for module in ('myst_nb', 'sphinx_book_theme'):
        if find_spec(module) is None:
            fail(f"No module named {module!r}; run pip install -e '.[docs]'")
    options = ['-W', '--keep-going', '-q', '-j', 'auto', '-b', 'html']
    folders = ['-d', str(BUILD / 'doctrees'), '-c', str(HERE), str(SOURCE), str(HTML)]
    done = subprocess.run([sys.executable, '-m', 'sphinx', *options, *folders], check=False)
    if done.returncode: fail('Sphinx found faults')


def stack_panels():
    "Let pictures of several panels be seen one below the other on a phone."
    for path in HTML.glob('*.html'):
        text = path.read_text(encoding='utf-8')
        path.write_text(pictures.stacked(text, HTML), encoding='utf-8')


def main():
    "Write the sources, build the site, and check its links."
    write_sources()
    vendor()
    run_sphinx()
    templates = (HTML / '_static').glob('*-macros.html')   # of the theme: no pages
    for path in templates: path.unlink()
    stack_panels()
    faults = check_site(HTML)
    if faults: fail('\n'.join(['faults of the site:', *faults]))
    print(f'{len(list(HTML.rglob("*.html")))} pages: open {HTML / "index.html"}')


if __name__ == '__main__': main()
