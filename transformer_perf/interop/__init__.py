"""Jobs of other programs, in and out: scripts, configurations, logs, profiles and traces."""
from .logs import read_log, read_products, read_profile
from .reading import FORMATS, as_job
from .tables import Job
from .writing import EXPORTS, export, job_asked, no_difference

__all__ = ['EXPORTS', 'FORMATS', 'Job', 'as_job', 'export', 'job_asked', 'no_difference',
           'read_log', 'read_products', 'read_profile']
