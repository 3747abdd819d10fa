"""`python -m hamburger` is `ham`."""

import sys

try:
    from hamburger.cli import main
except KeyboardInterrupt:  # the import of torch takes seconds, in which people change their minds
    sys.exit(130)

main()
