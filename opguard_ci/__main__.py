"""``python -m opguard_ci``: the command line under its full name."""

import sys

from opguard_ci.cli import main

if __name__ == "__main__":
    sys.exit(main())
