"""A client of OTLP over gRPC, made with grpcio and the messages of opentelemetry-proto.

    client.py HOST:PORT TRACES LOGS METRICS PROFILES

Sends the messages of the four files, plain and with gzip, twenty at a time, and a message that is invalid. Prints the status and the
words of each answer. Exit code 3: there is no grpcio or no opentelemetry-proto.
"""

import sys

try:
    import grpc
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
    from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as profiles
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)

METHODS = [
    ("trace.v1.TraceService", traces.ExportTraceServiceResponse),
    ("logs.v1.LogsService", logs.ExportLogsServiceResponse),
    ("metrics.v1.MetricsService", metrics.ExportMetricsServiceResponse),
    ("profiles.v1development.ProfilesService", profiles.ExportProfilesServiceResponse),
]


def show(name, call):
    try:
        answer = call()
        print(name, "OK", repr(str(answer.partial_success)))
    except grpc.RpcError as error:
        print(name, error.code().name, error.details())


channel = grpc.insecure_channel(sys.argv[1])
for (service, response), path in zip(METHODS, sys.argv[2:]):
    with open(path, "rb") as file:
        message = file.read()
    export = channel.unary_unary(
        f"/opentelemetry.proto.collector.{service}/Export",
        request_serializer=lambda message: message,
        response_deserializer=response.FromString,
    )
    name = service.split(".")[0]
    show(name, lambda: export(message, timeout=20))
    # An unknown field makes each of them another message.
    other = [message + bytes([0xA0, 0x06, number]) for number in range(20)]
    calls = [export.future(one, timeout=20, compression=grpc.Compression.Gzip) for one in other]
    results = {str(call.exception() or "OK") for call in calls}
    print(name, "at once", results)
    show(name, lambda: export(b"\x0a\xff", timeout=20))
unknown = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Import")
show("unknown", lambda: unknown(b"", timeout=20))
