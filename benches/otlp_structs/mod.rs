//! Finished requests of OTLP as structs of prost, to measure against.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use tributary::sink::otlp::Signal;

#[derive(Clone)]
pub(crate) enum Structs {
    Logs(ExportLogsServiceRequest),
    Traces(ExportTraceServiceRequest),
    Metrics(ExportMetricsServiceRequest),
    Profiles(ExportProfilesServiceRequest),
}

impl Structs {
    pub(crate) fn of(signal: Signal, body: &[u8]) -> Structs {
        match signal {
            Signal::Logs => Structs::Logs(Message::decode(body).unwrap()),
            Signal::Traces => Structs::Traces(Message::decode(body).unwrap()),
            Signal::Metrics => Structs::Metrics(Message::decode(body).unwrap()),
            Signal::Profiles => Structs::Profiles(Message::decode(body).unwrap()),
        }
    }

    pub(crate) fn written(self) -> Vec<u8> {
        match self {
            Structs::Logs(request) => request.encode_to_vec(),
            Structs::Traces(request) => request.encode_to_vec(),
            Structs::Metrics(request) => request.encode_to_vec(),
            Structs::Profiles(request) => request.encode_to_vec(),
        }
    }
}
