//! The level at which each listener acknowledges requests: what its option asks for, and what its sinks can reach.

use super::{Config, ListenerConfig, ProtocolOptions, SinkKind};
use tributary_options::Section;
use tributary_sink::AckLevel;
use tributary_sink_file::Fsync;

impl SinkKind {
    /// Why events in this sink are never durable. `None`: they can be.
    fn why_not_durable(&self) -> Option<&'static str> {
        match self {
            SinkKind::File(options) => (options.fsync == Fsync::Never).then_some("has fsync = \"never\""),
            // Without a spool, an event is delivered when JetStream has acknowledged it.
            SinkKind::Parquet(_) | SinkKind::Nats(_) => None,
            SinkKind::Http(options) => options.spool.is_none().then_some("has no spool"),
            SinkKind::Otlp(options) => options.spool.is_none().then_some("has no spool"),
            SinkKind::Stdout(_) => Some("has type = \"stdout\""),
            SinkKind::Tcp(_) => Some("has type = \"tcp\", whose receivers do not acknowledge"),
            SinkKind::Discard => Some("has type = \"discard\""),
        }
    }
}

impl Config {
    /// The level at which this listener acknowledges requests.
    pub fn acknowledge(&self, listener: &ListenerConfig) -> AckLevel {
        let Some(acknowledge) = acknowledge(listener) else { return AckLevel::Written };
        let level = || if self.not_durable(listener).is_empty() { AckLevel::Durable } else { AckLevel::Written };
        acknowledge.unwrap_or_else(level)
    }

    /// A sentence for each group of listeners that would acknowledge durable events, but for the sinks that it names.
    pub fn acknowledge_notes(&self) -> Vec<String> {
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        for listener in &self.listeners {
            let is_unset = acknowledge(listener) == Some(None);
            let sinks = self.not_durable(listener);
            if !is_unset || sinks.is_empty() {
                continue;
            }
            let sinks = sinks.join(", ");
            match groups.iter_mut().find(|(same, _)| *same == sinks) {
                Some((_, names)) => names.push(&listener.name),
                None => groups.push((sinks, vec![&listener.name])),
            }
        }
        let sentence = |(sinks, names): (String, Vec<&str>)| {
            format!("requests to {} are acknowledged when events are written, not durable: {sinks}", names.join(", "))
        };
        groups.into_iter().map(sentence).collect()
    }

    /// Reports listeners that are to acknowledge durable events, and whose sinks or agents cannot be so.
    pub(super) fn check_acknowledge(&self, root: &mut Section<'_>) {
        for listener in &self.listeners {
            if acknowledge(listener) != Some(Some(AckLevel::Durable)) {
                continue;
            }
            let path = ["listeners", &listener.name];
            let sinks = self.not_durable(listener);
            if !sinks.is_empty() {
                let message = format!("`acknowledge` cannot be \"durable\": {}", sinks.join(", "));
                let help = "change these sinks or their `protocols`, or write acknowledge = \"written\"";
                root.error_below(&path, "acknowledge", message, help);
            }
            if let ProtocolOptions::Zico(_, store, _) = &listener.protocol
                && store.state_dir.is_none()
                && store.state.is_none()
            {
                let message =
                    "`acknowledge` cannot be \"durable\": without `state_dir` registrations are kept in memory";
                let help = "set state_dir, or remove `acknowledge`: then only events are acknowledged as durable";
                root.error_below(&path, "acknowledge", message.to_owned(), help);
            }
        }
    }

    /// The sinks that take events of this listener and cannot make them durable, with the reasons.
    fn not_durable(&self, listener: &ListenerConfig) -> Vec<String> {
        let takes = self.sinks.iter().filter(|sink| sink.takes_events_of(listener));
        takes.filter_map(|sink| Some(format!("sink `{}` {}", sink.name, sink.kind.why_not_durable()?))).collect()
    }
}

/// The option `acknowledge` of a listener whose protocol answers.
fn acknowledge(listener: &ListenerConfig) -> Option<Option<AckLevel>> {
    match &listener.protocol {
        ProtocolOptions::DatadogAgent(_, http)
        | ProtocolOptions::Endless(_, _, http)
        | ProtocolOptions::Zico(_, _, http)
        | ProtocolOptions::Otlp(_, http) => Some(http.acknowledge),
        ProtocolOptions::Nats(options) => Some(options.acknowledge),
        ProtocolOptions::Bytefrog(_) | ProtocolOptions::Datadog(_) | ProtocolOptions::Rbkit(_) => None,
    }
}
