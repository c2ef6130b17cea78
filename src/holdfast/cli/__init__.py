"""The command line. Commands import what they need when they run, so that `--help` is fast."""


def main() -> None:
    """Entry point of `holdfast`. Exits with one of the codes in `holdfast.cli.exit_codes`."""
    from holdfast.cli.root import app

    app(prog_name="holdfast")
