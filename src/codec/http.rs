//! The head of an HTTP request, as the exchanges read it and as the explanations of captures show it.

/// The methods with which a request of HTTP begins, each with a space behind it; `PRI` begins HTTP/2.
const METHODS: [&str; 10] =
    ["GET ", "POST ", "PUT ", "HEAD ", "OPTIONS ", "DELETE ", "PATCH ", "CONNECT ", "TRACE ", "PRI "];

/// Whether these first bytes of a connection begin a request of HTTP.
pub fn is_request(first: &[u8]) -> bool {
    METHODS.iter().any(|method| first.starts_with(method.as_bytes()))
}

/// The head of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestHead {
    /// The method, e.g. `PUT`.
    pub method: String,
    /// The target as sent: a path, optionally with a query.
    pub target: String,
    /// The headers in the order received: names in lower case, values as sent.
    pub headers: Vec<(String, Vec<u8>)>,
}

impl RequestHead {
    /// The target without its query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The value of the first header with this name (given in lower case), without surrounding spaces. `None`: there
    /// is no such header, or its value is not UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        str::from_utf8(value).ok().map(str::trim)
    }
}
