"""Checks what the daemon has written of one client: FILE CLIENT REQUESTS [samples]."""
import json
import sys

file, client, requests = sys.argv[1], sys.argv[2], int(sys.argv[3])
events = [json.loads(line) for line in open(file, encoding="utf-8")]
spans = [event for event in events if event["kind"] == "span"]
ids = [(span["span"]["trace_id"], span["span"]["span_id"]) for span in spans]
faults = []


def check(is_so, what):
    if not is_so:
        faults.append(what)


check(len(set(ids)) == len(ids), f"{len(ids) - len(set(ids))} spans twice")
check(not [event for event in events if event["kind"] == "loss"], "losses")
check(all(span["resource"].get("service.instance.id") for span in spans), "spans without a process")
check(all(span["resource"].get("telemetry.sdk.name") == "datadog" for span in spans), "spans of another tracer")
if client == "java":
    check(len(spans) == requests, f"{len(spans)} spans of {requests}")
else:
    roots = {span["span"]["span_id"]: span for span in spans if span["name"] == "web.request"}
    children = [span for span in spans if span["name"] == "postgres.query"]
    check(len(roots) == requests and len(children) == requests, f"{len(roots)} and {len(children)} spans of {requests}")
    parents = [roots.get(child["span"].get("parent_span_id")) for child in children]
    check(all(parents), "children without their parents")
    same = [parent and parent["span"]["trace_id"] == child["span"]["trace_id"] for parent, child in zip(parents, children)]
    check(all(same), "children in other traces than their parents")
    numbers = sorted(int(span["attributes"]["number"]) for span in roots.values())
    check(numbers == list(range(requests)), "tags that are not those of the program")
    check(all(span["attributes"]["text"].startswith("größe") for span in roots.values()), "texts that are not UTF-8")
    failed = [span for span in roots.values() if span["span"]["status"] == "error"]
    message = [span["span"].get("status_message") for span in failed]
    check(message == ["the cart is locked"], f"errors {message}")
samples = sum(event["kind"] == "sample" for event in events)
check("samples" not in sys.argv or samples > 0, "no samples")
if faults:
    sys.exit(f"error: {client}: " + "; ".join(faults))
print(f"{client}: {len(spans)} spans, {samples} samples, {sum(event['kind'] == 'metric' for event in events)} metrics")
