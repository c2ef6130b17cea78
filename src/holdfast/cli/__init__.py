"""The command line. Commands import what they need when they run, so that `--help` answers at once."""


def main() -> None:
    """Entry point of `holdfast`. Ends the process with one of the codes of `holdfast.cli.exit_codes`."""
    from holdfast.cli.root import app

    app(prog_name="holdfast")
