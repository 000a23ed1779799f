//! Addresses that may have keys: used as they are, and shown without them.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use http::Uri;

/// Where a sink sends requests. Shown without the values of its query, which can be keys.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint(Uri);

impl From<Uri> for Endpoint {
    fn from(uri: Uri) -> Self {
        Endpoint(uri)
    }
}

impl FromStr for Endpoint {
    type Err = http::uri::InvalidUri;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Endpoint)
    }
}

impl Deref for Endpoint {
    type Target = Uri;

    fn deref(&self) -> &Uri {
        &self.0
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_secrets(&self.0.to_string()))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A line with stars in the place of what can be a secret: the user and password of addresses, the values of their queries,
/// and the values of headers that authorize. It has as many characters as before.
pub(super) fn starred(line: &str) -> String {
    let mut chars: Vec<char> = line.chars().collect();
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | ',' | ']' | '}');
    let star = |chars: &mut [char], from: usize, to: usize| chars[from..to].fill('*');
    let is_table = line.trim_start().starts_with("headers");
    let mut at = 0;
    while at < chars.len() {
        let end = (at..chars.len()).find(|at| is_end(chars[*at])).unwrap_or(chars.len());
        let word: String = chars[at..end].iter().collect();
        if let Some(scheme) = chars[at..end].windows(3).position(|three| three == [':', '/', '/']) {
            let host = at + scheme + 3;
            let path = (host..end).find(|at| matches!(chars[*at], '/' | '?' | '#')).unwrap_or(end);
            if let Some(user) = (host..path).rev().find(|at| chars[*at] == '@') {
                star(&mut chars, host, user);
            }
            let mut is_value = false;
            for at in (host..end).skip_while(|at| chars[*at] != '?').collect::<Vec<_>>() {
                match chars[at] {
                    '?' | '&' | ';' => is_value = false,
                    '=' if !is_value => is_value = true,
                    _ if is_value => chars[at] = '*',
                    _ => {}
                }
            }
        } else if is_secret_name(&word)
            && let Some(value) = header_value(&chars, end, word.ends_with(':'), is_table)
        {
            // The value of a header ends where its text ends.
            let close = (value..chars.len()).find(|at| matches!(chars[*at], '"' | '\'')).unwrap_or(chars.len());
            star(&mut chars, value, close);
            at = close;
            continue;
        }
        at = end + 1;
    }
    chars.into_iter().collect()
}

/// Where the value of a header begins whose name ends at `end`: behind a colon, or, in the table `headers`, in the text behind an
/// equals sign.
fn header_value(chars: &[char], end: usize, has_colon: bool, is_table: bool) -> Option<usize> {
    let next = |from: usize| (from..chars.len()).find(|at| !chars[*at].is_whitespace());
    if has_colon {
        return Some(next(end).unwrap_or(chars.len()));
    }
    let is_quote = |at: usize| matches!(chars[at], '"' | '\'');
    let behind_name = if is_table && end < chars.len() { end + usize::from(is_quote(end)) } else { return None };
    let equals = next(behind_name).filter(|at| chars[*at] == '=')?;
    next(equals + 1).filter(|at| is_quote(*at)).map(|quote| quote + 1)
}

/// Whether a header or key of this name can be a credential.
fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["auth", "cookie", "token", "secret", "password", "credential", "key", "session"]
        .iter()
        .any(|part| name.contains(part))
}

/// An address without its user and password, and with the names of its query only.
pub(super) fn without_secrets(address: &str) -> String {
    let starred = starred(address);
    let mut shown = String::with_capacity(starred.len());
    let mut is_star = false;
    for c in starred.chars() {
        if c != '*' {
            shown.push(c);
        } else if !is_star {
            shown.push_str("***");
        }
        is_star = c == '*';
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_users_passwords_and_values_of_queries() {
        for (address, shown) in [
            ("http://127.0.0.1:9000/x", "http://127.0.0.1:9000/x"),
            ("http://h/x?api_key=secret2&db=a", "http://h/x?api_key=***&db=***"),
            ("https://user:pass@h:1/x", "https://***@h:1/x"),
            ("http://h?k=a=b;c=d", "http://h?k=***;c=***"),
            ("http://h/?flag&k=", "http://h/?flag&k="),
        ] {
            assert_eq!(without_secrets(address), shown);
        }
        assert_eq!(Endpoint(Uri::from_static("http://h/x?key=s")).to_string(), "http://h/x?key=***");
    }

    #[test]
    fn a_line_of_a_file_keeps_its_length_and_loses_its_secrets() {
        for (line, shown) in [
            ("endpoint = \"http://user:pw@h/\" # why", "endpoint = \"http://*******@h/\" # why"),
            ("endpoint = 'http://h/?key=abc', x = 1", "endpoint = 'http://h/?key=***', x = 1"),
            (
                "headers = [\"Authorization: Bearer abc\", \"X-Tenant: a\"]",
                "headers = [\"Authorization: **********\", \"X-Tenant: a\"]",
            ),
            (
                "headers = { Authorization = \"Bearer abc\", \"x-api-key\" = 'abc', x-tenant = \"a\", cookie = { file = \"/c\" } }",
                "headers = { Authorization = \"**********\", \"x-api-key\" = '***', x-tenant = \"a\", cookie = { file = \"/c\" } }",
            ),
            ("servers = [\"nats://u:p@a\", \"nats://u:p@b\"]", "servers = [\"nats://***@a\", \"nats://***@b\"]"),
            ("listen = \"127.0.0.1:1\"", "listen = \"127.0.0.1:1\""),
        ] {
            assert_eq!(starred(line), shown);
        }
    }
}
