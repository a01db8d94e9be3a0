"""A local S3 with one bucket, run as a script: prints its address, and serves until its standard input ends.

A process of its own, because deltalake holds Python's lock while it talks to the storage. One request at a time, so
that its conditional put is atomic.
"""

import logging
import sys
import threading
import urllib.request

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ, start_response):
        with turn:
            return list(app(environ, start_response))

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT")).close()
    print(address, flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
