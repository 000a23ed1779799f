//! Bodies of `multipart/form-data`: their parts, as places in the body (RFC 7578, RFC 2046 section 5.1).

use memchr::memmem;

/// A part of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormPart<'a> {
    /// The name in its head.
    pub name: &'a str,
    /// The name of the file in its head; empty: it has none.
    pub file_name: &'a str,
    /// What it contains.
    pub content: &'a [u8],
}

/// Why a body is no such one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultipartError {
    /// Where it was found.
    pub offset: usize,
    /// What was expected there.
    pub expected: &'static str,
}

/// The boundary that a header `content-type` names. `None`: it names none, or is of another type.
pub fn boundary(content_type: &str) -> Option<&str> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.trim().split_once('=')?;
        name.eq_ignore_ascii_case("boundary").then_some(value.trim_matches('"'))
    })?;
    (1..=70).contains(&value.len()).then_some(value)
}

/// The parts of a body, at most `limit`.
///
/// # Errors
/// The body is not as the boundary says, or has more parts.
pub fn parts<'a>(body: &'a [u8], boundary: &str, limit: usize) -> Result<Vec<FormPart<'a>>, MultipartError> {
    let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
    let finder = memmem::Finder::new(&delimiter);
    let error = |offset, expected| MultipartError { offset, expected };
    // The first delimiter has no line before it, unless there is a preamble.
    let mut at = if body.starts_with(&delimiter[2..]) {
        delimiter.len() - 2
    } else {
        finder.find(body).ok_or_else(|| error(0, "the boundary"))? + delimiter.len()
    };
    let mut parts = Vec::new();
    loop {
        match &body[at..] {
            [b'-', b'-', ..] => return Ok(parts),
            [b'\r', b'\n', ..] => at += 2,
            _ => return Err(error(at, "the end of the line of the boundary")),
        }
        if parts.len() == limit {
            return Err(error(at, "fewer parts"));
        }
        let rest = &body[at..];
        let end =
            memmem::find(rest, b"\r\n\r\n").ok_or_else(|| error(at, "an empty line behind the head of a part"))?;
        let head = std::str::from_utf8(&rest[..end]).map_err(|_| error(at, "a head of UTF-8"))?;
        let content = at + end + 4;
        // An empty content shares its line feed with the head.
        let length = finder.find(&body[content - 2..]).ok_or_else(|| error(content, "the boundary behind a part"))?;
        let stop = (content - 2 + length).max(content);
        parts.push(FormPart {
            name: parameter(head, "name"),
            file_name: parameter(head, "filename"),
            content: &body[content..stop],
        });
        at = content - 2 + length + delimiter.len();
    }
}

/// A parameter of the header `content-disposition`; empty: there is none.
fn parameter<'a>(head: &'a str, name: &str) -> &'a str {
    let is_it = |line: &&str| line.get(..20).is_some_and(|start| start.eq_ignore_ascii_case("content-disposition:"));
    let line = head.split("\r\n").find(is_it).unwrap_or_default();
    let value = line.split(';').find_map(|parameter| {
        let (key, value) = parameter.trim().split_once('=')?;
        key.eq_ignore_ascii_case(name).then_some(value.trim_matches('"'))
    });
    value.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<'a>(parts: &[FormPart<'a>]) -> Vec<(&'a str, &'a str, &'a [u8])> {
        parts.iter().map(|part| (part.name, part.file_name, part.content)).collect()
    }

    #[test]
    fn parts_are_places_in_the_body() {
        let body = b"--b\r\nContent-Disposition: form-data; name=\"event\"; filename=\"event.json\"\r\n\
            Content-Type: application/json\r\n\r\n{}\r\n--b\r\ncontent-disposition: form-data; name=a\r\n\r\n\r\n--b--\r\n";
        let parts = parts(body, "b", 10).unwrap();
        assert_eq!(names(&parts), [("event", "event.json", &b"{}"[..]), ("a", "", &b""[..])]);
    }

    #[test]
    fn every_cut_body_is_refused() {
        let body = b"--b\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b\r\n\r\n\r\n2\r\n--b--";
        assert_eq!(parts(body, "b", 2).unwrap().len(), 2);
        for end in 0..body.len() {
            parts(&body[..end], "b", 2).unwrap_err();
        }
        assert_eq!(parts(body, "b", 1).unwrap_err().expected, "fewer parts");
        assert_eq!(parts(body, "c", 2).unwrap_err().expected, "the boundary");
    }

    #[test]
    fn a_boundary_may_be_quoted() {
        assert_eq!(boundary("multipart/form-data; boundary=abc"), Some("abc"));
        assert_eq!(boundary("Multipart/Form-Data; charset=x; Boundary=\"a b\""), Some("a b"));
        for other in ["application/json; boundary=a", "multipart/form-data", "multipart/form-data; boundary="] {
            assert_eq!(boundary(other), None, "{other}");
        }
    }
}
