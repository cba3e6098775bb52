"""`edgewise explore`: the page on which a network can be moved through the phase diagram."""

from __future__ import annotations

from pathlib import Path

import click

from edgewise.cli import exit_codes


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    metavar="N",
    help="The port; 0 takes a free one.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="The address to listen at; other machines can reach all but the default.",
)
@click.option("--share", is_flag=True, help="Allow other machines to ask; prints a token that they need.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
def explore(folder: Path | None, port: int, host: str, share: bool, open_page: bool) -> int:
    """Open a local page: put a model on the map, move it to where it trains, take the code home.

    FOLDER holds runs and planes to look at; nothing else is read. Nothing leaves this machine, and nothing is loaded
    from elsewhere.
    """
    from edgewise.explorer.serve import serve

    def tell(address: str) -> None:
        click.echo(f"edgewise explore: {address}  (Ctrl-C stops it)")
        if open_page:
            import webbrowser

            webbrowser.open(address)

    try:
        serve(host, port, share, tell, folder)
    except KeyboardInterrupt:
        click.echo()
    return exit_codes.FINE
