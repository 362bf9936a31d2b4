"""``python -m opguard_ci.capture.native``: compiles the recorder's fast path for this torch and Python."""

from __future__ import annotations

import sys

from .build import BuildError, build


def main() -> int:
    """Compile; the module's path on stdout, or on stderr why not."""
    try:
        print(build())
    except BuildError as error:
        print(
            f"The compiled recorder cannot be built: {error}. Capture works without it, only slower.", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
