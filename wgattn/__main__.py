"""`python -m wgattn`."""

from wgattn._cli import main

main()
