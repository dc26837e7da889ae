"""Installs transformer_perf as settings.ini describes it.

systems/ travels inside the package as transformer_perf.catalogue; the measurements of nbs/data, and
the parameters fitted to them, as transformer_perf.data.
"""
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
settings = ConfigParser()
settings.read(here / 'settings.ini', encoding='utf-8')
cfg = settings['DEFAULT']
wings = find_packages(here, include=['transformer_perf.*'])
folders = {'transformer_perf': 'transformer_perf', 'transformer_perf.catalogue': 'systems',
           'transformer_perf.data': 'nbs/data'}
files = {'transformer_perf': ['py.typed'], 'transformer_perf.catalogue': ['*.json', '*.csv'],
         'transformer_perf.data': ['*.csv', '*.json']}
extras = [key for key in cfg if key.endswith('_requirements')]

setup(
    name=cfg['lib_name'],
    version=cfg['version'],
    description=cfg['description'],
    long_description=(here / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    author=cfg['author'],
    license=cfg['license'].upper(),
    keywords=cfg['keywords'],
    python_requires='>=' + cfg['min_python'],
    install_requires=cfg['requirements'].split(),
    extras_require={key.removesuffix('_requirements'): cfg[key].split() for key in extras},
    packages=[*folders, *wings],
    package_dir=folders,
    package_data=files,
    entry_points={'console_scripts': cfg['console_scripts'].split()},
    zip_safe=False,
)
