"""Requests of a shop, traced by ddtrace: argument 1 is their number. With PROFILE it computes for some seconds."""
import os
import sys
import time

from ddtrace import tracer

for number in range(int(sys.argv[1])):
    with tracer.trace("web.request", service="shop", resource="GET /cart", span_type="web") as root:
        root.set_tag("number", str(number))
        root.set_tag("text", "größe" + "x" * 30_000 if number == 3 else "größe")
        with tracer.trace("postgres.query", service="shop-db", resource="SELECT 1", span_type="sql"):
            pass
        if number == 7:
            root.error = 1
            root.set_tag("error.message", "the cart is locked")
end = time.monotonic() + (4 if os.environ.get("PROFILE") else 0)
total = 0
while time.monotonic() < end:
    total += sum(number * number for number in range(1000))
tracer.shutdown()
