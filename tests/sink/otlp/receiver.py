"""A receiver of OTLP made with grpcio and the messages of opentelemetry-proto.

Prints its port, then a line for each request: the signal, and the message in base64 as this implementation writes what it
has read, before it answers; a line "mark" for each line of stdin. Ends when stdin does. Exit code 3: there is no grpcio or no opentelemetry-proto.
"""

import base64
import sys
import threading
from concurrent import futures

try:
    import grpc
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
    from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as profiles
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)

SERVICES = {
    "logs": ("logs.v1.LogsService", logs.ExportLogsServiceRequest, logs.ExportLogsServiceResponse),
    "traces": ("trace.v1.TraceService", traces.ExportTraceServiceRequest, traces.ExportTraceServiceResponse),
    "metrics": ("metrics.v1.MetricsService", metrics.ExportMetricsServiceRequest, metrics.ExportMetricsServiceResponse),
    "profiles": (
        "profiles.v1development.ProfilesService",
        profiles.ExportProfilesServiceRequest,
        profiles.ExportProfilesServiceResponse,
    ),
}
printing = threading.Lock()


def handler(signal, request_type, response_type):
    def export(request, _context):
        line = signal + " " + base64.b64encode(request.SerializeToString()).decode()
        with printing:
            print(line, flush=True)
        return response_type()

    return grpc.unary_unary_rpc_method_handler(
        export, request_deserializer=request_type.FromString, response_serializer=lambda message: message.SerializeToString()
    )


server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
for signal, (service, request_type, response_type) in SERVICES.items():
    name = "opentelemetry.proto.collector." + service
    methods = {"Export": handler(signal, request_type, response_type)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
for _line in sys.stdin:
    with printing:
        print("mark", flush=True)
server.stop(None).wait()
