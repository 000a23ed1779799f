//! What a request is for, and how it is encoded: paths and types of OTLP over HTTP, methods and types of gRPC.

use tributary_protocol::RequestHead;

use super::schema::{self, MessageSchema};

/// The bytes in front of a message of gRPC: whether it is compressed, and its length.
pub(super) const GRPC_HEAD_BYTES: usize = 5;

/// A signal of OpenTelemetry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Signal {
    Traces,
    Logs,
    Metrics,
    Profiles,
}

/// How the messages of a request are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Encoding {
    Protobuf,
    Json,
    /// A message of gRPC, which is protobuf.
    Grpc,
}

impl Signal {
    pub(super) const ALL: [Signal; 4] = [Signal::Traces, Signal::Logs, Signal::Metrics, Signal::Profiles];

    /// Its name in metrics and logs.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Signal::Traces => "traces",
            Signal::Logs => "logs",
            Signal::Metrics => "metrics",
            Signal::Profiles => "profiles",
        }
    }

    /// The path over HTTP, and the path of the method of gRPC.
    pub(super) fn paths(self) -> [&'static str; 2] {
        match self {
            Signal::Traces => ["/v1/traces", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"],
            Signal::Logs => ["/v1/logs", "/opentelemetry.proto.collector.logs.v1.LogsService/Export"],
            Signal::Metrics => ["/v1/metrics", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"],
            Signal::Profiles => [
                "/v1development/profiles",
                "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
            ],
        }
    }

    /// The message of its requests.
    pub(super) fn message(self) -> &'static MessageSchema {
        match self {
            Signal::Traces => &schema::TRACES,
            Signal::Logs => &schema::LOGS,
            Signal::Metrics => &schema::METRICS,
            Signal::Profiles => &schema::PROFILES,
        }
    }

    /// Of a path. `None`: there is no such path.
    pub(super) fn of(path: &str) -> Option<Signal> {
        Signal::ALL.into_iter().find(|signal| signal.paths().contains(&path.trim_end_matches('/')))
    }
}

impl Encoding {
    /// Of a request. `None`: its Content-Type is none of OTLP.
    pub(super) fn of(head: &RequestHead) -> Option<Encoding> {
        let content_type = head.header("content-type")?;
        let name = content_type.split(';').next().unwrap_or_default().trim();
        if name == "application/grpc" || name == "application/grpc+proto" {
            Some(Encoding::Grpc)
        } else if name.eq_ignore_ascii_case("application/x-protobuf")
            || name.eq_ignore_ascii_case("application/protobuf")
        {
            Some(Encoding::Protobuf)
        } else if name.eq_ignore_ascii_case("application/json") {
            Some(Encoding::Json)
        } else {
            None
        }
    }

    /// The type of the answer.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Encoding::Protobuf => "application/x-protobuf",
            Encoding::Json => "application/json",
            Encoding::Grpc => "application/grpc",
        }
    }
}
