"`python -m transformer_perf` is the command `transformer-perf`."
import sys

from .cli import main

if __name__ == '__main__': sys.exit(main())
