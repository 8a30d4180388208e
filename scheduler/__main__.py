"""``python -m scheduler``: the command line."""

import sys

from scheduler.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
