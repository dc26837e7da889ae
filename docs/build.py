"""Build the documentation site: `python docs/build.py` makes docs/_build/html, which needs no network to be read.

Needs the extra `docs` (pip install -e '.[docs]') and, for the first build, npm: MathJax and the widget scripts become part of the site.
"""
import json
import re
import shutil
import subprocess
import sys
import tarfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / 'tools'))
import pages
from notebooks import NOTEBOOKS, ROOT

BUILD = HERE / '_build'
SOURCE, STATIC, HTML, PACKAGES = (BUILD / name for name in ('source', 'static', 'html', 'npm'))
VENDORED = {  # npm package, version -> what of it goes into the site
    ('mathjax', '3.2.2'): {'es5/tex-mml-chtml.js': 'mathjax/tex-mml-chtml.js', 'es5/input': 'mathjax/input', 'es5/output/chtml': 'mathjax/output/chtml',
                           'es5/a11y': 'mathjax/a11y', 'es5/sre': 'mathjax/sre', 'es5/ui': 'mathjax/ui'},
    ('requirejs', '2.3.7'): {'require.js': 'require.js'},
    ('@jupyter-widgets/html-manager', '1.0.15'): {'dist': '.'},
}


def vendor():
    "Put the scripts that pages need into the static files, from npm, once."
    for (name, version), parts in VENDORED.items():
        archive = PACKAGES / f'{name.lstrip("@").replace("/", "-")}-{version}.tgz'
        if not archive.exists():
            npm = shutil.which('npm')
            if npm is None: raise SystemExit(f'docs/build.py: npm is missing; it is needed once, to fetch {name} {version} (on Debian: apt-get install npm)')
            PACKAGES.mkdir(parents=True, exist_ok=True)
            done = subprocess.run([npm, 'pack', '--silent', f'{name}@{version}', '--pack-destination', str(PACKAGES)], capture_output=True, text=True)
            if done.returncode or not archive.exists(): raise SystemExit(f'docs/build.py: npm could not fetch {name} {version}: {done.stderr.strip() or done.stdout.strip()}')
        unpacked = PACKAGES / archive.stem
        if not unpacked.exists():
            with tarfile.open(archive) as tar: tar.extractall(unpacked, filter='data')
        for part, place in parts.items():
            there = unpacked / 'package' / part
            if there.is_dir(): shutil.copytree(there, STATIC / place, dirs_exist_ok=True)
            else: (STATIC / place).parent.mkdir(parents=True, exist_ok=True); shutil.copy(there, STATIC / place)


def write_sources():
    "Notebooks, pages and API as Sphinx reads them."
    for folder in (SOURCE, STATIC, HTML): shutil.rmtree(folder, ignore_errors=True)
    (SOURCE / 'api').mkdir(parents=True)
    shutil.copytree(ROOT / 'nbs' / 'images', SOURCE / 'images')
    (STATIC / 'notebooks').mkdir(parents=True)
    for path in NOTEBOOKS:
        (SOURCE / path.name).write_text(json.dumps(pages.page(path)), encoding='utf-8')
        shutil.copy(path, STATIC / 'notebooks')
    shutil.copytree(ROOT / 'nbs' / 'images', STATIC / 'notebooks' / 'images')
    for path in HERE.glob('*.md'): shutil.copy(path, SOURCE)
    for name, text in pages.api().items(): (SOURCE / name).write_text(text, encoding='utf-8')


class Links(HTMLParser):
    "What a page loads, where it leads, and the places in it that others may lead to."
    def __init__(self, text):
        super().__init__()
        self.loads, self.leads, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[key] for key in ('id', 'name') if attrs.get(key)}
        if tag == 'a': self.leads.append(attrs.get('href'))
        elif tag == 'link' and attrs.get('rel') in ('search', 'next', 'prev', 'index', 'author', 'canonical'): self.leads.append(attrs.get('href'))
        else: self.loads += [attrs.get('src'), attrs.get('data'), attrs.get('href') if tag == 'link' else None]


def check_site(folder):  # list of faults
    "Pages load nothing from elsewhere, and every link within the site leads somewhere."
    found = {path: Links(path.read_text(encoding='utf-8')) for path in folder.rglob('*.html')}
    faults = []
    for path, links in found.items():
        where = path.relative_to(folder)
        for url in filter(None, links.loads + links.leads):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                if url in links.loads and parts.scheme != 'data': faults.append(f'{where} loads {url}')
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file(): faults.append(f'{where}: {url} does not exist')
            elif parts.fragment and target in found and unquote(parts.fragment) not in found[target].ids: faults.append(f'{where}: {url} leads to no such place')
    for path in folder.rglob('*.css'):
        for url in re.findall(r'(?:url\(|@import)\s*["\']?((?:https?:)?//[^"\')\s]+)', path.read_text(encoding='utf-8')): faults.append(f'{path.relative_to(folder)} loads {url}')
    return sorted(set(faults))


def main():
    write_sources()
    vendor()
    try: import myst_nb, sphinx_book_theme
    except ImportError as error: raise SystemExit(f"docs/build.py: {error}; run pip install -e '.[docs]'")
    if subprocess.run([sys.executable, '-m', 'sphinx', '-W', '--keep-going', '-q', '-b', 'html', '-d', str(BUILD / 'doctrees'), '-c', str(HERE), str(SOURCE), str(HTML)]).returncode:
        raise SystemExit('docs/build.py: Sphinx found faults')
    for path in (HTML / '_static').glob('*-macros.html'): path.unlink()  # templates of the theme, not pages
    faults = check_site(HTML)
    if faults: raise SystemExit('\n'.join(['docs/build.py: faults of the site:', *faults]))
    print(f'{len(list(HTML.rglob("*.html")))} pages: open {HTML / "index.html"}')


if __name__ == '__main__': main()
