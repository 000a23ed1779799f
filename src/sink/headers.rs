//! Further headers of requests to a destination: a table of names and values, which can be in files or in the environment.

use std::io;
use std::path::Path;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use tributary_options::{Secret, Section};

/// Reads the option `headers`. Those of `own` are set by the sink.
pub fn read(section: &mut Section<'_>, own: &[&str]) -> Vec<(String, Secret)> {
    section.secrets("headers", |name, value| {
        let valid = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "is no name of a header".to_owned())?;
        if own.contains(&valid.as_str()) {
            return Err("is set by tributary".to_owned());
        }
        match value {
            Secret::Text(text) if HeaderValue::from_str(text).is_err() => {
                Err("has no valid value of a header".to_owned())
            }
            _ => Ok(()),
        }
    })
}

/// The headers of each request. Files and the environment are read.
///
/// # Errors
/// A value cannot be read, or is no value of a header.
pub fn map(headers: &[(String, Secret)]) -> io::Result<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, secret) in headers {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the header {name}: {why}"));
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid("its name is not valid"))?;
        let mut value = HeaderValue::from_str(&secret.read()?).map_err(|_| invalid("its value is not valid"))?;
        value.set_sensitive(true);
        map.append(key, value);
    }
    Ok(map)
}

/// The files that have values, by the names of their headers.
pub fn files(headers: &[(String, Secret)]) -> impl Iterator<Item = (&str, &Path)> {
    headers.iter().filter_map(|(name, value)| match value {
        Secret::File(path) => Some((name.as_str(), &**path)),
        Secret::Text(_) | Secret::Env(_) => None,
    })
}
