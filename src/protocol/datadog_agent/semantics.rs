//! `semantics = "opentelemetry"`: the names of today's semantic conventions in the place of those that Datadog's tracers use.

use tributary_event::SpanKind;

/// The tags with another name, in the order of the page about this protocol.
pub(super) const RENAMED: [(&str, &str); 64] = [
    ("http.method", "http.request.method"),
    ("http.status_code", "http.response.status_code"),
    ("http.url", "url.full"),
    ("http.path", "url.path"),
    ("http.query.string", "url.query"),
    ("http.host", "server.address"),
    ("http.hostname", "server.address"),
    ("http.useragent", "user_agent.original"),
    ("http.client_ip", "client.address"),
    ("http.version", "network.protocol.version"),
    ("http.request.content_length", "http.request.body.size"),
    ("http.response.content_length", "http.response.body.size"),
    ("http.request.size", "http.request.body.size"),
    ("http.response.size", "http.response.body.size"),
    ("db.type", "db.system.name"),
    ("db.system", "db.system.name"),
    ("db.name", "db.namespace"),
    ("db.instance", "db.namespace"),
    ("db.statement", "db.query.text"),
    ("sql.query", "db.query.text"),
    ("mongodb.query", "db.query.text"),
    ("redis.raw_command", "db.query.text"),
    ("db.operation", "db.operation.name"),
    ("db.sql.table", "db.collection.name"),
    ("mongodb.collection", "db.collection.name"),
    ("db.rowcount", "db.response.returned_rows"),
    ("db.row_count", "db.response.returned_rows"),
    ("rpc.grpc.full_method", "rpc.method"),
    ("grpc.method.name", "rpc.method"),
    ("grpc.method.service", "rpc.service"),
    ("grpc.method.package", "rpc.package"),
    ("grpc.status.code", "rpc.grpc.status_code"),
    ("grpc.code", "rpc.grpc.status_code"),
    ("messaging.destination", "messaging.destination.name"),
    ("messaging.operation", "messaging.operation.type"),
    ("messaging.message_id", "messaging.message.id"),
    ("messaging.conversation_id", "messaging.message.conversation_id"),
    ("messaging.message_payload_size_bytes", "messaging.message.body.size"),
    ("messaging.consumer_id", "messaging.client.id"),
    ("messaging.kafka.consumer_group", "messaging.consumer.group.name"),
    ("kafka.group_id", "messaging.consumer.group.name"),
    ("kafka.group", "messaging.consumer.group.name"),
    ("kafka.topic", "messaging.destination.name"),
    ("kafka.partition", "messaging.destination.partition.id"),
    ("messaging.kafka.partition", "messaging.destination.partition.id"),
    ("messaging.kafka.message_offset", "messaging.kafka.offset"),
    ("kafka.offset", "messaging.kafka.offset"),
    ("amqp.queue", "messaging.destination.name"),
    ("amqp.routing_key", "messaging.rabbitmq.destination.routing_key"),
    ("out.host", "server.address"),
    ("out.port", "server.port"),
    ("peer.hostname", "server.address"),
    ("peer.port", "server.port"),
    ("peer.ipv4", "network.peer.address"),
    ("peer.ipv6", "network.peer.address"),
    ("tcp.remote.host", "server.address"),
    ("tcp.remote.port", "server.port"),
    ("network.destination.name", "server.address"),
    ("network.destination.ip", "network.peer.address"),
    ("network.destination.port", "server.port"),
    ("network.client.ip", "client.address"),
    ("usr.id", "user.id"),
    ("usr.name", "user.name"),
    ("usr.email", "user.email"),
];

/// The name of a tag by semantic conventions. `None`: it has none, or its own name is that one.
pub(super) fn renamed(key: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(of, _)| *of == key).map(|(_, name)| *name)
}

/// Whether the resource of a span of this type is what OpenTelemetry calls a span.
pub(super) fn is_named_by_resource(span_type: &[u8]) -> bool {
    matches!(span_type, b"web" | b"http" | b"rpc" | b"grpc" | b"sql" | b"queue" | b"kafka" | b"messaging" | b"worker")
}

/// The kind of a span of this type, which does not name its kind.
pub(super) fn kind_of_type(span_type: &[u8]) -> Option<SpanKind> {
    Some(match span_type {
        b"web" | b"serverless" => SpanKind::Server,
        b"http" | b"sql" | b"db" | b"cache" | b"redis" | b"memcached" | b"mongodb" | b"cassandra"
        | b"elasticsearch" | b"opensearch" | b"dynamodb" => SpanKind::Client,
        b"worker" => SpanKind::Consumer,
        b"template" | b"function" => SpanKind::Internal,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_page_has_the_table_and_no_tag_is_renamed_twice() {
        let page = include_str!("../../../docs/protocols/datadog_agent.md");
        let mut keys = HashSet::new();
        for (key, name) in RENAMED {
            assert!(keys.insert(key), "{key}");
            assert!(renamed(name).is_none(), "{key} becomes {name}, which is renamed, too");
            assert!(page.contains(&format!("| `{key}` | `{name}` |")), "the page lacks | `{key}` | `{name}` |");
        }
    }
}
