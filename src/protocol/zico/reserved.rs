//! Attribute keys that peers cannot set.

use tributary_event::semconv;

/// Whether an agent's attribute key is reserved for attributes of ours: it is then moved below `zico.attribute.`.
pub(super) fn is_reserved(key: &str) -> bool {
    let own = [semconv::CODE_FUNCTION_NAME, semconv::TRACE_ID, semconv::SPAN_ID];
    key.starts_with("zico.")
        || key.starts_with("tributary.")
        || key.starts_with("exception.")
        || own.iter().any(|name| name.as_str() == key)
}
