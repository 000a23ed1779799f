"""An S3 server: moto, which keeps its objects in this process. Prints its port, then an answer to each line of stdin.

bucket NAME       creates a bucket
objects NAME      the lengths of its objects by their names, as JSON
fetch NAME DIR    writes its objects below a directory
parts NAME        the number of multipart uploads that are not complete
stop, start       stops the server, and starts it again on the same port with the same objects
refuse, accept    refuses unknown access keys from now on, or accepts everybody
"""

import json
import os
import socket
import sys

try:
    from moto import settings
    from moto.core.responses import ActionAuthenticatorMixin
    from moto.s3.models import s3_backends
    from moto.server import ThreadedMotoServer
except ImportError:
    sys.exit(3)


def serve(port):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    return server


def hold():
    """A socket that has the port and refuses connections, so that no other process gets the port meanwhile."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", port))
    return held


def answer(words):
    global held, server
    backend = s3_backends["123456789012"]["aws"]
    match words:
        case ["bucket", name]:
            backend.create_bucket(name, "us-east-1")
        case ["objects", name]:
            return json.dumps({key: item.size for key, item in backend.buckets[name].keys.items()})
        case ["fetch", name, directory]:
            for key, item in backend.buckets[name].keys.items():
                path = os.path.join(directory, key)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(item.value)
        case ["parts", name]:
            return str(len(backend.buckets[name].multiparts))
        case ["stop"]:
            server.stop()
            server._server.server_close()
            held = hold()
        case ["start"]:
            held.close()
            server = serve(port)
        case ["refuse"]:
            ActionAuthenticatorMixin.request_count = 0
            settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        case ["accept"]:
            settings.INITIAL_NO_AUTH_ACTION_COUNT = float("inf")
    return "done"


server = serve(0)
_, port = server.get_host_and_port()
print(port, flush=True)
for line in sys.stdin:
    print(answer(line.split()), flush=True)
