//! What became of an attempt, and the one rule for what the answers of all destinations mean: `http`, `otlp`, `nats`, uploads.
//!
//! A destination that is *away* can take the same request later. One that *refuses* takes none until an operator corrects something,
//! here or there, so nothing is given up meanwhile. Only an answer about this very request makes it *bad*.

use std::time::Duration;

/// What became of one attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttemptOutcome {
    /// The destination has the events.
    Accepted,
    /// The destination has the events, and had them before this attempt.
    Duplicate,
    /// The destination has the events except this number, which it does not want again, and why. None: that is known.
    Partial(u64, Option<String>),
    /// The destination does not take requests now, and the pause that it asks for.
    Away(String, Option<Duration>),
    /// The destination takes no requests until an operator corrects something, here or there: a key, a name, a permission.
    Refusing(String),
    /// The request is too large, smaller ones can succeed.
    TooLarge(String),
    /// This request can never succeed, in the destination's words; the next one can.
    Bad(String),
}

impl AttemptOutcome {
    /// The meaning of a status of HTTP. `why`: the status and the beginning of the body; `pause`: that of `Retry-After`.
    pub fn of_status(status: u16, why: String, pause: Option<Duration>) -> AttemptOutcome {
        match status {
            200..=299 => AttemptOutcome::Accepted,
            413 => AttemptOutcome::TooLarge(why),
            400 | 422 => AttemptOutcome::Bad(why),
            408 | 425 | 429 => AttemptOutcome::Away(why, pause),
            300..=499 => AttemptOutcome::Refusing(why),
            // Every 5xx, and what is no status of HTTP.
            _ => AttemptOutcome::Away(why, pause),
        }
    }

    /// The meaning of a status of gRPC that is not OK: <https://grpc.io/docs/guides/status-codes/>. `None`: it is no number.
    /// `pause`: that of RetryInfo.
    pub fn of_grpc_code(code: Option<u64>, why: String, pause: Option<Duration>) -> AttemptOutcome {
        match code {
            Some(grpc::INVALID_ARGUMENT | grpc::ALREADY_EXISTS | grpc::OUT_OF_RANGE) => AttemptOutcome::Bad(why),
            Some(
                grpc::NOT_FOUND
                | grpc::PERMISSION_DENIED
                | grpc::FAILED_PRECONDITION
                | grpc::UNIMPLEMENTED
                | grpc::UNAUTHENTICATED,
            ) => AttemptOutcome::Refusing(why),
            // CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, INTERNAL, UNAVAILABLE, DATA_LOSS, and others.
            _ => AttemptOutcome::Away(why, pause),
        }
    }
}

/// Codes of gRPC, by their names.
#[allow(missing_docs)]
pub mod grpc {
    pub const OK: u64 = 0;
    pub const INVALID_ARGUMENT: u64 = 3;
    pub(crate) const NOT_FOUND: u64 = 5;
    pub(crate) const ALREADY_EXISTS: u64 = 6;
    pub(crate) const PERMISSION_DENIED: u64 = 7;
    pub const RESOURCE_EXHAUSTED: u64 = 8;
    pub(crate) const FAILED_PRECONDITION: u64 = 9;
    pub const OUT_OF_RANGE: u64 = 11;
    pub const UNIMPLEMENTED: u64 = 12;
    pub(crate) const UNAUTHENTICATED: u64 = 16;
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Option<Duration> = Some(Duration::from_secs(7));

    fn meaning(answer: AttemptOutcome) -> &'static str {
        match answer {
            AttemptOutcome::Accepted => "accepted",
            AttemptOutcome::Away(_, pause) if pause == PAUSE => "away",
            AttemptOutcome::Refusing(_) => "refusing",
            AttemptOutcome::TooLarge(_) => "too large",
            AttemptOutcome::Bad(_) => "bad",
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_status_has_the_meaning_of_the_rule() {
        let away = [408, 425, 429, 500, 501, 502, 503, 504, 505, 507, 511, 520, 599, 600, 999];
        let refusing = [300, 301, 302, 304, 307, 308, 401, 403, 404, 405, 406, 407, 409, 410, 411, 415, 431, 451];
        for (statuses, expected) in [
            (&away[..], "away"),
            (&refusing[..], "refusing"),
            (&[400, 422], "bad"),
            (&[413], "too large"),
            (&[200, 202, 204, 299], "accepted"),
        ] {
            for status in statuses {
                assert_eq!(meaning(AttemptOutcome::of_status(*status, String::new(), PAUSE)), expected, "{status}");
            }
        }
    }

    #[test]
    fn every_code_of_grpc_has_the_meaning_of_the_rule() {
        for code in 1..=20 {
            let expected = match code {
                3 | 6 | 11 => "bad",
                5 | 7 | 9 | 12 | 16 => "refusing",
                _ => "away",
            };
            assert_eq!(meaning(AttemptOutcome::of_grpc_code(Some(code), String::new(), PAUSE)), expected, "{code}");
        }
        assert_eq!(meaning(AttemptOutcome::of_grpc_code(None, String::new(), PAUSE)), "away", "no number");
    }
}
