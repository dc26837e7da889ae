"""Will it fit, what would be faster, why not so; what a run costs, and what it depends on."""
from .answers import fits, improve, why_not
from .neighbours import changes_table, changes_view
from .planning import ClusterOperation, plan, plan_view
from .sensitivities import needed, sensitivity

__all__ = ['ClusterOperation', 'changes_table', 'changes_view', 'fits', 'improve', 'needed', 'plan',
           'plan_view', 'sensitivity', 'why_not']
