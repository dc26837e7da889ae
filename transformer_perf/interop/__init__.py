"""Jobs of other programs, in and out: scripts, configurations, logs and profiles."""
from .logs import read_log, read_products, read_profile
from .reading import FORMATS, as_job, job_asked
from .tables import Job
from .writing import export, no_difference

__all__ = ['FORMATS', 'Job', 'as_job', 'export', 'job_asked', 'no_difference', 'read_log',
           'read_products', 'read_profile']
