//! What a request is for, by its path.

use super::wire::Carries;

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    Register,
    Session,
    Submit(Carries),
    Form,
    /// A packet of the binary protocol. Only recordings and the quarantine have it in a request.
    Packet,
}

/// The path of a packet where it is kept as a request.
pub(super) const PACKET_PATH: &str = "/tcp/packet";
/// The header with the host that its hello has named.
pub(super) const HOST_HEADER: &str = "x-zorka-host";

impl Route {
    pub(super) fn read(path: &str) -> Option<Route> {
        Some(match path.trim_end_matches('/') {
            "/agent/register" => Route::Register,
            "/agent/session" => Route::Session,
            "/agent/submit/agd" => Route::Submit(Carries::Definitions),
            "/agent/submit/trc" => Route::Submit(Carries::Trace),
            "/submit/agent" => Route::Form,
            PACKET_PATH => Route::Packet,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_a_path_with_or_without_a_trailing_slash() {
        assert_eq!(Route::read("/agent/register"), Some(Route::Register));
        assert_eq!(Route::read("/agent/submit/trc/"), Some(Route::Submit(Carries::Trace)));
        for path in ["", "/", "/agent", "/agent/submit", "/agent/submit/trc/x", "agent/register"] {
            assert_eq!(Route::read(path), None, "{path}");
        }
    }
}
