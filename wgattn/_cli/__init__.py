"""The command line, `python -m wgattn` or `wgattn`. Its libraries are loaded when it runs, not before."""


def main() -> None:
    """Run the command in sys.argv. Exits with 1 for an error and with 2 for a wrong command line."""
    from wgattn._cli.app import run

    run()
