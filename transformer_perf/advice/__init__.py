"""Will it fit, what would be faster, why not so; plans of a run, and what limits it."""
from .answers import fits, improve, why_not
from .neighbours import changes_table, changes_view

__all__ = ['changes_table', 'changes_view', 'fits', 'improve', 'why_not']
