"""`python -m hamburger` is `ham`."""

from hamburger.cli import main

main()
