//! The typed reads of a [`Section`]: each takes a key and its default, and returns a valid value.
//!
//! An invalid value is reported, and the default is returned, so that reading continues and finds all errors.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use toml::de::DeValue;

use super::diagnostic::nearest;
use super::endpoint::without_secrets;
use super::secret::Secret;
use super::section::{Section, article, toml_text};
use super::setting::ValueKind;
use super::units::{ByteSize, format_duration, parse_duration};

impl Section<'_> {
    /// `true` or `false`.
    pub fn bool(&mut self, key: &str, default: bool) -> bool {
        let read = |value: &DeValue<'_>| value.as_bool().ok_or_else(|| ValueError::wrong_type("true or false", value));
        self.with_default(key, ValueKind::Bool, default, read, bool::to_string)
    }

    /// A whole number.
    pub fn count<T: Whole>(&mut self, key: &str, default: T, allowed: RangeInclusive<T>) -> T {
        let kind = ValueKind::Count(whole(&allowed));
        self.with_default(key, kind, default, |value| read_count(value, &allowed), |count| count.to_u64().to_string())
    }

    /// A whole number without a default.
    pub fn optional_count<T: Whole>(&mut self, key: &str, allowed: RangeInclusive<T>) -> Option<T> {
        let kind = ValueKind::Count(whole(&allowed));
        self.optional(key, kind, |value| read_count(value, &allowed), |count| count.to_u64().to_string())
    }

    /// A number of bytes: a string with a unit, or an integer.
    pub fn size<T: Whole>(&mut self, key: &str, default: T, allowed: RangeInclusive<T>) -> T {
        let read = |value: &DeValue<'_>| read_size(value, &allowed);
        let kind = ValueKind::Size(whole(&allowed));
        self.with_default(key, kind, default, read, |size| toml_text(&ByteSize(size.to_u64()).to_string()))
    }

    /// Reports pauses between attempts whose shortest one, `retry_min`, is longer than the longest one, `retry_max`.
    pub fn check_retry(&mut self, shortest: Duration, longest: Duration) {
        if shortest > longest {
            self.error("retry_min", "is more than retry_max", None);
        }
    }

    /// A duration: a string with a unit.
    pub fn duration(&mut self, key: &str, default: Duration, allowed: RangeInclusive<Duration>) -> Duration {
        let read = |value: &DeValue<'_>| read_duration(value, &allowed);
        let kind = ValueKind::Duration(allowed.clone());
        self.with_default(key, kind, default, read, |duration| toml_text(&format_duration(*duration)))
    }

    /// A duration, or an empty string, which is the default.
    pub fn duration_or_none(&mut self, key: &str, allowed: RangeInclusive<Duration>) -> Option<Duration> {
        let read = |value: &DeValue<'_>| match value.as_str() {
            Some("") => Ok(None),
            _ => read_duration(value, &allowed).map(Some),
        };
        let shown = |duration: &Option<Duration>| toml_text(&duration.map(format_duration).unwrap_or_default());
        self.with_default(key, ValueKind::DurationOrNone(allowed.clone()), None, read, shown)
    }

    /// A string.
    pub fn text(&mut self, key: &str, default: &str) -> String {
        self.with_default(key, ValueKind::Text, default.to_owned(), read_text, |text| toml_text(text))
    }

    /// A string without a default.
    pub fn optional_text(&mut self, key: &str) -> Option<String> {
        self.optional(key, ValueKind::Text, read_text, |text| toml_text(text))
    }

    /// A string. The key is required; `help` says what to write.
    pub fn required_text(&mut self, key: &str, help: &str) -> Option<String> {
        self.require(key, || help.to_owned());
        self.optional_text(key)
    }

    /// An address, which is shown without its secrets. The key is required; `help` says what to write.
    pub fn required_address(&mut self, key: &str, help: &str) -> Option<String> {
        self.require(key, || help.to_owned());
        self.optional(key, ValueKind::Text, read_text, |text| toml_text(&without_secrets(text)))
    }

    /// A number of bytes without a default.
    pub fn optional_size<T: Whole>(&mut self, key: &str, allowed: RangeInclusive<T>) -> Option<T> {
        let read = |value: &DeValue<'_>| read_size(value, &allowed);
        let kind = ValueKind::Size(whole(&allowed));
        self.optional(key, kind, read, |size| toml_text(&ByteSize(size.to_u64()).to_string()))
    }

    /// A host name or IP address, with a port.
    pub fn optional_host(&mut self, key: &str) -> Option<String> {
        self.optional(key, ValueKind::Text, read_host, |host| toml_text(host))
    }

    /// A host name or IP address, with a port. The key is required.
    pub fn required_host(&mut self, key: &str) -> Option<String> {
        self.require(key, || format!("write {key} = \"host:port\""));
        self.optional_host(key)
    }

    /// The path of a file, as written. A relative path is relative to the working directory.
    pub fn optional_path(&mut self, key: &str) -> Option<PathBuf> {
        self.optional(key, ValueKind::Text, read_path, |path| toml_text(path)).map(PathBuf::from)
    }

    /// The path of a file. The key is required.
    pub fn required_path(&mut self, key: &str) -> Option<PathBuf> {
        self.require(key, || format!("write {key} = \"the path of a file\""));
        self.optional_path(key)
    }

    /// One of `names`.
    pub fn choice<T: Copy + PartialEq>(&mut self, key: &str, default: T, names: &[(&str, T)]) -> T {
        self.with_default(
            key,
            choices(names),
            default,
            |value| read_choice(value, names),
            |value| name_of(value, names),
        )
    }

    /// One of `names`. The key is required.
    pub fn required_choice<T: Copy + PartialEq>(&mut self, key: &str, names: &[(&str, T)]) -> Option<T> {
        self.require(key, || format!("write {key} = {}", alternatives(names)));
        self.optional(key, choices(names), |value| read_choice(value, names), |value| name_of(value, names))
    }

    /// One of `names`, without a default.
    pub fn optional_choice<T: Copy + PartialEq>(&mut self, key: &str, names: &[(&str, T)]) -> Option<T> {
        self.optional(key, choices(names), |value| read_choice(value, names), |value| name_of(value, names))
    }

    /// An IP address with a port, without a default.
    pub fn optional_address(&mut self, key: &str) -> Option<SocketAddr> {
        self.optional(key, ValueKind::Text, read_address, |address| toml_text(&address.to_string()))
    }

    /// An IP address with a port, or an empty string for none.
    pub fn address_or_none(&mut self, key: &str, default: impl Into<Option<SocketAddr>>) -> Option<SocketAddr> {
        let read = |value: &DeValue<'_>| match value.as_str() {
            Some("") => Ok(None),
            _ => read_address(value).map(Some),
        };
        let show = |address: &Option<SocketAddr>| toml_text(&address.map_or_else(String::new, |one| one.to_string()));
        self.with_default(key, ValueKind::Text, default.into(), read, show)
    }

    /// An IP address with a port.
    pub fn address(&mut self, key: &str, default: SocketAddr) -> SocketAddr {
        self.with_default(key, ValueKind::Text, default, read_address, |address| toml_text(&address.to_string()))
    }

    /// A list of strings; empty by default.
    pub fn list_of_text(&mut self, key: &str) -> Vec<String> {
        self.list_of_text_or(key, &[])
    }

    /// A list of strings with a default.
    pub fn list_of_text_or(&mut self, key: &str, default: &[String]) -> Vec<String> {
        if !self.has(key) {
            let shown: Vec<_> = default.iter().map(|text| toml_text(text)).collect();
            self.record(key, ValueKind::List(Box::new(ValueKind::Text)), Some(format!("[{}]", shown.join(", "))));
            return default.to_vec();
        }
        self.list(key, ValueKind::Text, read_text, |text| toml_text(text))
    }

    /// A list of some of `names`; empty by default.
    pub fn choices<T: Copy + PartialEq>(&mut self, key: &str, names: &[(&str, T)]) -> Vec<T> {
        self.list(key, choices(names), |value| read_choice(value, names), |value| name_of(value, names))
    }

    /// A list of networks, e.g. `10.0.0.0/8`; empty by default. An address alone is a network of one address.
    pub fn cidrs(&mut self, key: &str) -> Vec<IpNet> {
        self.list(key, ValueKind::Text, read_cidr, |network| toml_text(&network.to_string()))
    }

    pub(super) fn with_default<T>(
        &mut self,
        key: &str,
        kind: ValueKind,
        default: T,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, ValueError>,
        show: impl FnOnce(&T) -> String,
    ) -> T {
        let Given { value, place } = self.given(key, read).unwrap_or(Given { value: default, place: None });
        self.record(key, kind, Some(place.unwrap_or_else(|| show(&value))));
        value
    }

    pub(super) fn optional<T>(
        &mut self,
        key: &str,
        kind: ValueKind,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, ValueError>,
        show: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let (value, place) = self.given(key, read).map_or((None, None), |given| (Some(given.value), given.place));
        self.record(key, kind, place.or_else(|| value.as_ref().map(show)));
        value
    }

    /// The valid elements of a list. Each invalid element is reported at its own place.
    pub(super) fn list<T>(
        &mut self,
        key: &str,
        element: ValueKind,
        read: impl Fn(&DeValue<'_>) -> Result<T, ValueError>,
        show: impl Fn(&T) -> String,
    ) -> Vec<T> {
        let (mut values, mut shown) = (Vec::new(), Vec::new());
        if let Some(found) = self.take(key) {
            match found.get_ref() {
                DeValue::Array(elements) => {
                    for element in elements.iter() {
                        match read_in_place(element.get_ref(), &read) {
                            Ok(Given { value, place }) => {
                                shown.push(place.unwrap_or_else(|| show(&value)));
                                values.push(value);
                            }
                            Err(fault) => {
                                let message = format!("an element of `{key}` {}", fault.message);
                                self.report(Some(element.span()), message, fault.help);
                            }
                        }
                    }
                }
                other => {
                    let mut fault = ValueError::wrong_type("a list", other);
                    fault.help = other.as_str().map(|text| format!("write [{}]", toml_text(text)));
                    self.report(Some(found.span()), format!("`{key}` {}", fault.message), fault.help);
                }
            }
        }
        self.record(key, ValueKind::List(Box::new(element)), Some(format!("[{}]", shown.join(", "))));
        values
    }

    /// The value in the file, if it exists and is valid.
    fn given<T>(&mut self, key: &str, read: impl FnOnce(&DeValue<'_>) -> Result<T, ValueError>) -> Option<Given<T>> {
        let found = self.take(key)?;
        match read_in_place(found.get_ref(), read) {
            Ok(value) => Some(value),
            Err(fault) => {
                self.report(Some(found.span()), format!("`{key}` {}", fault.message), fault.help);
                None
            }
        }
    }

    pub(super) fn require(&mut self, key: &str, help: impl FnOnce() -> String) {
        self.required();
        if self.has(key) {
            return;
        }
        let message = format!("{} needs the key `{key}`", self.title());
        match self.misspelt(key) {
            Some(span) => self.report(Some(span), message, Some(format!("did you mean `{key}`?"))),
            None => self.error_at_name(message, Some(help())),
        }
    }
}

/// The kind of a value that is one of `names`.
fn choices<T>(names: &[(&str, T)]) -> ValueKind {
    ValueKind::Choice(names.iter().map(|(name, _)| (*name).to_owned()).collect())
}

fn whole<T: Whole>(allowed: &RangeInclusive<T>) -> RangeInclusive<u64> {
    allowed.start().to_u64()..=allowed.end().to_u64()
}

/// A value, and where it is if it is not in the configuration itself.
struct Given<T> {
    value: T,
    /// As it is shown: the place and not the value, which can be secret.
    place: Option<String>,
}

/// Reads a value, or the text in the place that stands for it: `{ file = "…" }` or `{ env = "…" }`.
fn read_in_place<T>(
    value: &DeValue<'_>,
    read: impl FnOnce(&DeValue<'_>) -> Result<T, ValueError>,
) -> Result<Given<T>, ValueError> {
    let Some(place) = Secret::elsewhere(value) else { return Ok(Given { value: read(value)?, place: None }) };
    let text = place.read().map_err(|error| ValueError { message: format!("cannot be read: {error}"), help: None })?;
    let value = read(&DeValue::String(text.into()))?;
    Ok(Given { value, place: Some(place.shown()) })
}

/// Whole numbers in options.
pub trait Whole: Copy + Ord {
    /// The number as `u64`.
    fn to_u64(self) -> u64;
    /// The number in this type, if it fits.
    fn from_u64(number: u64) -> Option<Self>;
}

impl Whole for u64 {
    fn to_u64(self) -> u64 {
        self
    }
    fn from_u64(number: u64) -> Option<Self> {
        Some(number)
    }
}

impl Whole for usize {
    fn to_u64(self) -> u64 {
        self as u64
    }
    fn from_u64(number: u64) -> Option<Self> {
        number.try_into().ok()
    }
}

impl Whole for u32 {
    fn to_u64(self) -> u64 {
        self.into()
    }
    fn from_u64(number: u64) -> Option<Self> {
        number.try_into().ok()
    }
}

/// The error of a value.
pub(super) struct ValueError {
    /// The text after the name of the key.
    pub(super) message: String,
    pub(super) help: Option<String>,
}

impl ValueError {
    pub(super) fn wrong_type(wanted: &str, found: &DeValue<'_>) -> ValueError {
        ValueError { message: format!("must be {wanted}, not {}", article(found.type_str())), help: None }
    }

    pub(super) fn with_help(message: impl Into<String>, help: impl Into<String>) -> ValueError {
        ValueError { message: message.into(), help: Some(help.into()) }
    }
}

fn read_count<T: Whole>(value: &DeValue<'_>, allowed: &RangeInclusive<T>) -> Result<T, ValueError> {
    let integer = value.as_integer().ok_or_else(|| ValueError::wrong_type("a whole number", value))?;
    let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
    within(number, allowed, |bound| bound.to_u64().to_string())
}

fn read_size<T: Whole>(value: &DeValue<'_>, allowed: &RangeInclusive<T>) -> Result<T, ValueError> {
    let number = match value {
        DeValue::Integer(integer) => u64::from_str_radix(integer.as_str(), integer.radix()).ok(),
        DeValue::String(text) => match text.parse::<ByteSize>() {
            Ok(size) => Some(size.0),
            Err(error) => return Err(ValueError::with_help("is not a size", error.to_string())),
        },
        other => {
            return Err(ValueError {
                help: Some("for example \"8MiB\"".into()),
                ..ValueError::wrong_type("a size", other)
            });
        }
    };
    within(number, allowed, |bound| ByteSize(bound.to_u64()).to_string())
}

/// A number that is in its range. None is a number outside of every range: negative, or larger than 64 bits.
fn within<T: Whole>(
    number: Option<u64>,
    allowed: &RangeInclusive<T>,
    show: impl Fn(T) -> String,
) -> Result<T, ValueError> {
    number.and_then(T::from_u64).filter(|number| allowed.contains(number)).ok_or_else(|| {
        let (least, most) = (show(*allowed.start()), show(*allowed.end()));
        ValueError::with_help("is out of range", format!("allowed: {least} to {most}"))
    })
}

pub(super) fn read_duration(value: &DeValue<'_>, allowed: &RangeInclusive<Duration>) -> Result<Duration, ValueError> {
    let duration = match value {
        DeValue::String(text) => {
            parse_duration(text).map_err(|error| ValueError::with_help("is not a duration", error.to_string()))?
        }
        DeValue::Integer(number) => {
            return Err(ValueError::with_help("has no unit", format!("write a unit, e.g. \"{number}s\"")));
        }
        other => {
            return Err(ValueError {
                help: Some("for example \"10s\"".into()),
                ..ValueError::wrong_type("a duration", other)
            });
        }
    };
    if allowed.contains(&duration) {
        return Ok(duration);
    }
    let (least, most) = (format_duration(*allowed.start()), format_duration(*allowed.end()));
    Err(ValueError::with_help("is out of range", format!("allowed: {least} to {most}")))
}

fn read_text(value: &DeValue<'_>) -> Result<String, ValueError> {
    value.as_str().map(str::to_owned).ok_or_else(|| ValueError::wrong_type("a string", value))
}

fn read_path(value: &DeValue<'_>) -> Result<String, ValueError> {
    let path = read_text(value)?;
    if path.is_empty() || path.contains('\0') {
        return Err(ValueError { message: "is not the path of a file".into(), help: None });
    }
    Ok(path)
}

fn read_choice<T: Copy>(value: &DeValue<'_>, names: &[(&str, T)]) -> Result<T, ValueError> {
    let Some(text) = value.as_str() else {
        let help = Some(format!("allowed: {}", alternatives(names)));
        return Err(ValueError { help, ..ValueError::wrong_type("a string", value) });
    };
    match names.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(*value),
        None => {
            let help = match nearest(text, names.iter().map(|(name, _)| *name)) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("allowed: {}", alternatives(names)),
            };
            Err(ValueError::with_help(format!("cannot be {}", toml_text(text)), help))
        }
    }
}

fn name_of<T: PartialEq>(value: &T, names: &[(&str, T)]) -> String {
    names.iter().find(|(_, named)| named == value).map_or_else(String::new, |(name, _)| toml_text(name))
}

/// `"a", "b" or "c"`.
fn alternatives<T>(names: &[(&str, T)]) -> String {
    let names: Vec<_> = names.iter().map(|(name, _)| toml_text(name)).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

fn read_address(value: &DeValue<'_>) -> Result<SocketAddr, ValueError> {
    let help = "write an IP address and a port, e.g. \"127.0.0.1:8136\"";
    let text = value
        .as_str()
        .ok_or_else(|| ValueError { help: Some(help.into()), ..ValueError::wrong_type("an address", value) })?;
    text.parse().map_err(|_| ValueError::with_help("is not an address", help))
}

fn read_host(value: &DeValue<'_>) -> Result<String, ValueError> {
    let text = read_text(value)?;
    let is_one = text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_address = text.parse::<SocketAddr>().is_ok();
        let is_name =
            !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        port.parse::<u16>().is_ok_and(|port| port != 0) && (is_address || is_name)
    });
    if is_one {
        return Ok(text);
    }
    Err(ValueError::with_help(
        "is not a host and a port",
        "write a host name or IP address and a port, e.g. \"127.0.0.1:5555\"",
    ))
}

fn read_cidr(value: &DeValue<'_>) -> Result<IpNet, ValueError> {
    let text = read_text(value)?;
    let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    // Host bits have no effect, so they are not printed either.
    network
        .map(|network| unmapped(network).trunc())
        .ok_or_else(|| ValueError::with_help("is not a network", "for example \"10.0.0.0/8\" or \"192.0.2.7\""))
}

/// Peers have canonical addresses: a network of mapped addresses is the network of the IPv4 addresses.
fn unmapped(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(network) => network.addr().to_ipv4_mapped().zip(network.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    mapped.and_then(|(address, prefix)| IpNet::new(address.into(), prefix).ok()).unwrap_or(network)
}

#[cfg(test)]
mod tests {
    use super::super::section::read_document;

    #[test]
    fn a_list_keeps_valid_elements_and_reports_each_invalid_one_at_its_place() {
        let list = |text| read_document("f", text, "", |root| root.list_of_text("names")).map(|(names, _)| names);
        assert_eq!(list("names = ['a', 'b']").unwrap(), ["a", "b"]);
        assert!(list("").unwrap().is_empty());
        let errors = list("names = ['a', 1, 'b', true]").unwrap_err();
        let columns: Vec<_> =
            errors.diagnostics.iter().map(|one| one.place.as_ref().map(|place| place.column)).collect();
        assert_eq!(columns, [Some(15), Some(23)]);
    }

    #[test]
    fn a_missing_optional_section_requires_no_key_and_lists_its_options() {
        let read = |text| {
            read_document("f", text, "", |root| {
                root.optional_section("tls", |tls| (tls.required_path("key"), tls.optional_text("name")))
            })
        };
        let (absent, settings) = read("").unwrap();
        assert_eq!(absent, None);
        assert_eq!(
            settings.iter().map(|one| (one.key.as_str(), &one.value)).collect::<Vec<_>>(),
            [("key", &None), ("name", &None)]
        );
        assert_eq!(read("tls.key = 'k'").unwrap().0, Some((Some("k".into()), None)));
        assert!(read("tls.name = 'n'").unwrap_err().to_string().contains("[tls] needs the key `key`"));
        assert!(read("tls.key = ''").is_err());
    }
}
