//! The parameters of a request.

use hyper::StatusCode;

use super::answer::ApiError;

/// The parameters, in their order.
#[derive(Debug)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads the part of a target behind its question mark.
    pub(super) fn new(query: &str) -> Query {
        let pairs = form_urlencoded::parse(query.as_bytes());
        Query(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// Checks that there are no other parameters than these.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), ApiError> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) if known.is_empty() => Err(bad(format!("unknown parameter {name}; there are none"))),
            Some((name, _)) => Err(bad(format!("unknown parameter {name}; the parameters are {}", known.join(", ")))),
        }
    }

    /// The value of a parameter that is not empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// The values of a parameter that may be repeated, without empty ones.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let values = self.0.iter().filter(move |(known, _)| known == name);
        values.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// A number.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let read = |text: &str| text.parse().map_err(|_| bad(format!("{name} must be a whole number, not {text:?}")));
        self.text(name).map(read).transpose()
    }

    /// The steps from `from_ms` to `to_ms`: their numbers, each of `step_ms`. There are `count` at most, which is the default, and the
    /// last one is that of `now_ms`.
    pub(super) fn steps(&self, step_ms: u64, count: u64, now_ms: u64) -> Result<(u64, u64), ApiError> {
        let present = now_ms / step_ms;
        let oldest = (present + 1).saturating_sub(count);
        let step = |name| Ok::<_, ApiError>(self.number(name)?.map(|at_ms| at_ms / step_ms));
        let first = step("from_ms")?.unwrap_or(oldest).max(oldest);
        let last = step("to_ms")?.unwrap_or(present).min(present);
        if last < first {
            return Err(bad("to_ms is before from_ms, or before the window"));
        }
        Ok((first, last))
    }

    /// A number of rows.
    pub(super) fn limit(&self, default: usize, most: usize) -> Result<usize, ApiError> {
        match self.number("limit")? {
            None => Ok(default),
            Some(limit) if limit >= 1 && limit <= most as u64 => Ok(limit as usize),
            Some(limit) => Err(bad(format!("limit is {limit}; it must be 1 to {most}"))),
        }
    }

    /// Whether a parameter is 1 or true.
    pub(super) fn is_set(&self, name: &str) -> bool {
        matches!(self.text(name), Some("1" | "true"))
    }

    /// One of these words; the first when there is none.
    pub(super) fn choice<'a>(&self, name: &str, words: &[&'a str]) -> Result<&'a str, ApiError> {
        let Some(given) = self.text(name) else { return Ok(words[0]) };
        let known = words.iter().find(|word| **word == given);
        known.copied().ok_or_else(|| bad(format!("{name} is {given:?}; it must be one of {}", words.join(", "))))
    }
}

/// The error of a request that cannot be understood.
pub(super) fn bad(line: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, line)
}
