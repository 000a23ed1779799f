"""An rbkit agent whose sockets are libzmq's own (pyzmq): serves a recorded conversation.

usage: libzmq_peer.py SESSION_DIRECTORY PUBLISH_PORT REQUEST_PORT [PUB|XPUB]   (port 0: any)

Says where it is bound, as one line of JSON, and then obeys lines on stdin:
  handshake FILE    answers handshakes with this file from now on
  publish FILE      publishes this file
  end               ends
and says after each what has happened, as one line of JSON: the requests so far, and handshakes answered since the last
`handshake`. A line `wait WHAT N` is answered once WHAT (a request, or `subscribed`) has come N times.
Ends by itself when stdin does. Exit code 3: there is no pyzmq.
"""

import json
import os
import queue
import sys
import threading

try:
    import zmq
except ImportError:
    sys.exit(3)


def main():
    directory, publish_port, request_port = sys.argv[1:4]
    kind = zmq.XPUB if sys.argv[4:] != ["PUB"] else zmq.PUB
    context = zmq.Context()
    publisher = context.socket(kind)
    replier = context.socket(zmq.REP)
    for socket, port in ((publisher, publish_port), (replier, request_port)):
        socket.setsockopt(zmq.LINGER, 2000)
        socket.bind("tcp://127.0.0.1:" + (port if port != "0" else "*"))
    address = lambda socket: socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()[len("tcp://"):]
    say({"publish": address(publisher), "request": address(replier)})

    lines = queue.Queue()
    threading.Thread(target=read_lines, args=(lines,), daemon=True).start()
    handshake, requests, answered, subscribed = b"", [], 0, 0
    waiting = None
    poller = zmq.Poller()
    poller.register(replier, zmq.POLLIN)
    if kind == zmq.XPUB:
        poller.register(publisher, zmq.POLLIN)
    while True:
        for socket, _ in poller.poll(5):
            if socket is publisher:
                subscribed += publisher.recv() == b"\x01"
                continue
            request = replier.recv()
            requests.append(request.decode())
            is_handshake = request == b"handshake"
            replier.send(handshake if is_handshake else b"ok")
            answered += is_handshake
        while waiting is None and not lines.empty():
            line = lines.get()
            words = line.split()
            if line == "" or words[0] == "end":
                context.destroy(linger=2000)
                return
            if words[0] == "wait":
                waiting = (words[1], int(words[2]))
                break
            with open(os.path.join(directory, words[1]), "rb") as file:
                body = file.read()
            if words[0] == "publish":
                publisher.send(body)
            else:
                handshake, answered = body, 0
            say({"requests": requests, "answered": answered})
        if waiting is not None:
            what, times = waiting
            so_far = {"subscribed": subscribed, "answered": answered}.get(what, requests.count(what))
            if so_far >= times:
                waiting = None
                say({"requests": requests, "answered": answered})


def read_lines(lines):
    for line in sys.stdin:
        lines.put(line.strip())
    lines.put("")


def say(value):
    print(json.dumps(value), flush=True)


main()
