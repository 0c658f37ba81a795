"""Serve the built book on this machine and open the browser: `python -m scalebook.book.serve`."""

import argparse
import contextlib
import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"


def server(site=SITE, port=8000):
    """Return a server of the folder `site` on 127.0.0.1, at `port` or, when that is taken, at a free one.

    Raises ValueError when there is no built book in `site`.
    """
    if not (Path(site) / "index.html").exists():
        raise ValueError(f"site = {str(site)!r} is not allowed: it has no index.html (run `make book` first)")
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError:
        return ThreadingHTTPServer(("127.0.0.1", 0), handler)


def main():
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000, help="the port to try first (default: 8000)")
    parser.add_argument("--no-browser", action="store_true", help="only serve")
    options = parser.parse_args()
    with server(port=options.port) as running:
        address = f"http://127.0.0.1:{running.server_port}/"
        print(f"The book is at {address} (Ctrl-C ends this)", flush=True)
        if not options.no_browser:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            running.serve_forever()


if __name__ == "__main__":
    main()
