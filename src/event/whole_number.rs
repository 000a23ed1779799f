//! Attributes whose values are whole numbers, also where a peer sends them in another form.

/// Whether the attribute of this name is a whole number: an integer by OpenTelemetry's semantic conventions, or the name of an
/// older convention or of Datadog's tracers for the same. Some peers send them as doubles or texts (field notes, section 6).
pub fn names_whole_number(key: &str) -> bool {
    matches!(
        key,
        "client.port"
            | "code.column.number"
            | "code.line.number"
            | "db.response.returned_rows"
            | "http.request.body.size"
            | "http.request.resend_count"
            | "http.request.size"
            | "http.request_content_length"
            | "http.response.body.size"
            | "http.response.size"
            | "http.response.status_code"
            | "http.response_content_length"
            | "http.status_code"
            | "messaging.batch.message_count"
            | "messaging.message.body.size"
            | "net.host.port"
            | "net.peer.port"
            | "network.destination.port"
            | "network.local.port"
            | "network.peer.port"
            | "process.parent_pid"
            | "process.pid"
            | "process_id"
            | "rpc.grpc.status_code"
            | "server.port"
            | "thread.id"
    )
}

/// The number that a text of digits is, if no other text is the same number: without leading zeros, and at most `i64::MAX`.
pub fn whole_number(text: &str) -> Option<i64> {
    /// The digits of `i64::MAX`.
    const MAX_DIGITS: usize = 19;
    let is_canonical = match text.as_bytes() {
        [] | [b'0', _, ..] => false,
        digits => digits.len() <= MAX_DIGITS && digits.iter().all(u8::is_ascii_digit),
    };
    if is_canonical { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_that_are_written_again_as_they_are_become_numbers() {
        for (text, number) in [
            ("0", Some(0)),
            ("503", Some(503)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("10000000000000000000", None),
            ("", None),
            ("007", None),
            ("00", None),
            ("+1", None),
            ("-1", None),
            ("1.0", None),
            (" 1", None),
            ("1e3", None),
            ("２", None),
        ] {
            assert_eq!(whole_number(text), number, "{text}");
        }
    }
}
