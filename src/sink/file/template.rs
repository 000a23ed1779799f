//! The path template: parsed once, expanded for every batch, and matched against paths to recognize our files.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::fmt::strtime;

use tributary_event::{Kind, UnixNanos};

/// A path with dates and fields in it, confined to its base directory.
///
/// The value of a placeholder is never empty and contains neither `/` nor `.`, so an expansion has exactly the components of the
/// template and none of them can become `..`.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    base: PathBuf,
    /// Directories below the base, and the file's name as the last one; so there is at least one.
    components: Vec<Vec<TemplatePart>>,
}

#[derive(Clone, Debug, PartialEq)]
enum TemplatePart {
    Literal(String),
    Date(&'static DateItem),
    Protocol,
    Listener,
    Kind,
}

/// A strftime item that may stand in a path, and which texts it can produce.
#[derive(Debug, PartialEq)]
struct DateItem {
    format: &'static str,
    shape: Shape,
}

#[derive(Debug, PartialEq)]
enum Shape {
    /// This many digits; the number is between the second and the third value, inclusive.
    Digits(usize, u32, u32),
    OneOf(&'static [&'static str]),
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const MONTHS_SHORT: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const DAYS_SHORT: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// A closed list: items that produce `/`, `:` or spaces do not belong in a path, items finer than a second would make a
/// file per batch, and two-digit years sort wrongly.
const DATE_ITEMS: [DateItem; 20] = [
    DateItem { format: "%Y", shape: Shape::Digits(4, 0, 9999) },
    DateItem { format: "%G", shape: Shape::Digits(4, 0, 9999) },
    DateItem { format: "%m", shape: Shape::Digits(2, 1, 12) },
    DateItem { format: "%d", shape: Shape::Digits(2, 1, 31) },
    DateItem { format: "%j", shape: Shape::Digits(3, 1, 366) },
    DateItem { format: "%H", shape: Shape::Digits(2, 0, 23) },
    DateItem { format: "%I", shape: Shape::Digits(2, 1, 12) },
    DateItem { format: "%M", shape: Shape::Digits(2, 0, 59) },
    DateItem { format: "%S", shape: Shape::Digits(2, 0, 59) },
    DateItem { format: "%q", shape: Shape::Digits(1, 1, 4) },
    DateItem { format: "%U", shape: Shape::Digits(2, 0, 53) },
    DateItem { format: "%V", shape: Shape::Digits(2, 1, 53) },
    DateItem { format: "%W", shape: Shape::Digits(2, 0, 53) },
    DateItem { format: "%u", shape: Shape::Digits(1, 1, 7) },
    DateItem { format: "%w", shape: Shape::Digits(1, 0, 6) },
    DateItem { format: "%a", shape: Shape::OneOf(&DAYS_SHORT) },
    DateItem { format: "%A", shape: Shape::OneOf(&DAYS) },
    DateItem { format: "%b", shape: Shape::OneOf(&MONTHS_SHORT) },
    DateItem { format: "%B", shape: Shape::OneOf(&MONTHS) },
    DateItem { format: "%p", shape: Shape::OneOf(&["AM", "PM"]) },
];

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// What is invalid, with the item or field, and what is allowed.
    pub fn parse(text: &str) -> Result<Template, String> {
        if text.is_empty() {
            return Err("the path is empty".to_owned());
        }
        if text.ends_with('/') {
            return Err(format!("the path `{text}` ends in `/`; a file's name must follow"));
        }
        if let Some(control) = text.chars().find(|c| c.is_control()) {
            return Err(format!("the path has the control character {control:?} in it"));
        }
        let mut base = PathBuf::from(if text.starts_with('/') { "/" } else { "" });
        let mut components = Vec::new();
        let mut names = text.split('/').filter(|name| !name.is_empty() && *name != ".").peekable();
        while let Some(name) = names.next() {
            if name == ".." {
                return Err(format!("the path `{text}` has `..` in it; it must not lead upwards"));
            }
            let parts = parse_component(name)?;
            let is_directory = names.peek().is_some();
            match parts.as_slice() {
                [TemplatePart::Literal(literal)] if is_directory && components.is_empty() => base.push(literal),
                _ => components.push(parts),
            }
        }
        if components.is_empty() || text.ends_with("/.") {
            return Err(format!("the path `{text}` names no file"));
        }
        Ok(Template { base, components })
    }

    /// The directory that all files are below. Empty for the working directory.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// How many names follow the base in every expansion: directories, then the file.
    pub fn depth(&self) -> usize {
        self.components.len()
    }

    /// The path for events of this protocol and listener, read at `observed`.
    pub fn expand(&self, observed: UnixNanos, protocol: &str, listener: &str, kind: Kind) -> PathBuf {
        let time = timestamp(observed);
        let mut path = self.base.clone();
        for component in &self.components {
            let mut name = String::new();
            for part in component {
                match part {
                    TemplatePart::Literal(literal) => name.push_str(literal),
                    TemplatePart::Date(item) => name.push_str(&item.expand(time)),
                    TemplatePart::Protocol => name.push_str(&sanitize(protocol)),
                    TemplatePart::Listener => name.push_str(&sanitize(listener)),
                    TemplatePart::Kind => name.push_str(kind.as_str()),
                }
            }
            path.push(name);
        }
        path
    }

    /// Whether events of different listeners go to different files.
    pub fn has_listener(&self) -> bool {
        self.components.iter().flatten().any(|part| matches!(part, TemplatePart::Listener))
    }

    /// Whether events of different kinds go to different files.
    pub fn has_kind(&self) -> bool {
        self.components.iter().flatten().any(|part| matches!(part, TemplatePart::Kind))
    }

    /// Whether `name` can be the component at `level` (0: the first below the base) of an expansion at any time.
    pub fn could_name(&self, level: usize, name: &str) -> bool {
        self.undated(level, name).is_some()
    }

    /// A component that [could be named](Template::could_name) `name`, with its date items in place of the dates: the
    /// same for all dates of one protocol and listener.
    pub fn undated(&self, level: usize, name: &str) -> Option<String> {
        let mut undated = String::new();
        matches(self.components.get(level)?, name, None, &mut undated).then_some(undated)
    }

    /// Whether an expansion at `now` can be `path`: if not, no event read from now on goes there.
    pub fn is_current(&self, path: &Path, now: UnixNanos) -> bool {
        let time = timestamp(now);
        let Ok(relative) = path.strip_prefix(&self.base) else { return false };
        let mut names = relative.iter().map(|name| name.to_str().unwrap_or_default());
        self.components
            .iter()
            .all(|parts| names.next().is_some_and(|name| matches(parts, name, Some(time), &mut String::new())))
            && names.next().is_none()
    }
}

impl DateItem {
    fn expand(&self, time: Timestamp) -> String {
        strtime::format(self.format, time).expect("every item of the table formats every timestamp")
    }

    /// The length of the prefix of `text` that this item can have produced.
    fn prefix_len(&self, text: &str) -> Option<usize> {
        match self.shape {
            Shape::Digits(width, least, most) => {
                let digits = text.get(..width)?;
                let number: u32 = digits.bytes().all(|b| b.is_ascii_digit()).then_some(digits)?.parse().ok()?;
                (least..=most).contains(&number).then_some(width)
            }
            Shape::OneOf(names) => names.iter().find(|name| text.starts_with(**name)).map(|name| name.len()),
        }
    }
}

fn parse_component(name: &str) -> Result<Vec<TemplatePart>, String> {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some(at) = rest.find(['%', '{', '}']) {
        push_literal(&mut parts, &rest[..at]);
        let special = &rest[at..];
        rest = if special.starts_with('%') {
            parse_item(special, &mut parts)?
        } else if special.starts_with('{') {
            parse_field(special, &mut parts)?
        } else {
            return Err(format!("`}}` without `{{` in `{name}`"));
        };
    }
    push_literal(&mut parts, rest);
    Ok(parts)
}

/// Reads the item at the front of `text`; returns what follows it.
fn parse_item<'a>(text: &'a str, parts: &mut Vec<TemplatePart>) -> Result<&'a str, String> {
    let Some(letter) = text.chars().nth(1) else {
        return Err("`%` at the end of a name; a literal percent sign is `%%`".to_owned());
    };
    let (item, rest) = text.split_at(1 + letter.len_utf8());
    match item {
        "%%" => push_literal(parts, "%"),
        "%F" => parts.append(&mut parse_component("%Y-%m-%d")?),
        _ => match DATE_ITEMS.iter().find(|known| known.format == item) {
            Some(known) => parts.push(TemplatePart::Date(known)),
            None => {
                let known: Vec<_> = DATE_ITEMS.iter().map(|item| item.format).collect();
                return Err(format!("`{item}` cannot stand in a path; items that can: %F {} %%", known.join(" ")));
            }
        },
    }
    Ok(rest)
}

/// Reads the field at the front of `text`; returns what follows it.
fn parse_field<'a>(text: &'a str, parts: &mut Vec<TemplatePart>) -> Result<&'a str, String> {
    let Some(end) = text.find('}') else {
        return Err(format!("`{text}` lacks its `}}`"));
    };
    let (field, rest) = text.split_at(end + 1);
    parts.push(match field {
        "{protocol}" => TemplatePart::Protocol,
        "{listener}" => TemplatePart::Listener,
        "{kind}" => TemplatePart::Kind,
        _ => return Err(format!("unknown field `{field}`; the fields are {{protocol}}, {{listener}} and {{kind}}")),
    });
    Ok(rest)
}

/// Appends a literal; adjacent literals are joined, so that a component without placeholders is a single part.
fn push_literal(parts: &mut Vec<TemplatePart>, text: &str) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(TemplatePart::Literal(literal)) => literal.push_str(text),
        _ => parts.push(TemplatePart::Literal(text.to_owned())),
    }
}

/// Whether `parts` can expand to `text`, at `time` or at any time. If so, appends to `undated` what they expand to with
/// the date items themselves in place of the dates.
fn matches(parts: &[TemplatePart], text: &str, time: Option<Timestamp>, undated: &mut String) -> bool {
    let Some((part, rest)) = parts.split_first() else { return text.is_empty() };
    let start = undated.len();
    let is_match = match part {
        TemplatePart::Literal(literal) => text.strip_prefix(literal.as_str()).is_some_and(|text| {
            undated.push_str(literal);
            matches(rest, text, time, undated)
        }),
        TemplatePart::Date(item) => {
            let len = match time {
                Some(now) => Some(item.expand(now)).filter(|date| text.starts_with(date)).map(|date| date.len()),
                None => item.prefix_len(text),
            };
            len.is_some_and(|len| {
                undated.push_str(item.format);
                matches(rest, &text[len..], time, undated)
            })
        }
        TemplatePart::Kind => Kind::ALL.into_iter().any(|kind| {
            undated.truncate(start);
            undated.push_str(kind.as_str());
            text.strip_prefix(kind.as_str()).is_some_and(|text| matches(rest, text, time, undated))
        }),
        TemplatePart::Protocol | TemplatePart::Listener => {
            let longest = text.bytes().take_while(|byte| is_word_byte(*byte)).count();
            (1..=longest).rev().any(|len| {
                undated.truncate(start);
                undated.push_str(&text[..len]);
                matches(rest, &text[len..], time, undated)
            })
        }
    };
    if !is_match {
        undated.truncate(start);
    }
    is_match
}

/// A field's value as part of a file name.
fn sanitize(value: &str) -> String {
    if value.is_empty() {
        return "_".to_owned();
    }
    value.chars().map(|c| if u8::try_from(c).is_ok_and(is_word_byte) { c } else { '_' }).collect()
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// The same time for jiff, whose range is larger than that of [`UnixNanos`].
pub fn timestamp(time: UnixNanos) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(time.0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2024-02-29T13:07:09Z, a Thursday.
    const LEAP_DAY: UnixNanos = UnixNanos(1_709_212_029_123_456_789);

    fn expand(template: &str, listener: &str) -> String {
        let path = Template::parse(template).unwrap().expand(LEAP_DAY, "datadog", listener, Kind::Span);
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn dates_and_fields_are_filled_in() {
        assert_eq!(expand("events/%Y-%m-%d/{protocol}.ndjson", "x"), "events/2024-02-29/datadog.ndjson");
        assert_eq!(expand("/var/log/%F/{listener}-%H%M%S.log", "web"), "/var/log/2024-02-29/web-130709.log");
        assert_eq!(expand("plain.ndjson", "x"), "plain.ndjson");
        assert_eq!(expand("{kind}/x.ndjson", "x"), "span/x.ndjson");
        assert_eq!(expand("a/./b//100%%-%a-%A-%b-%B-%p-%I", "x"), "a/b/100%-Thu-Thursday-Feb-February-PM-01");
        assert_eq!(expand("%G-%V-%u-%w-%j-%U-%W-q%q", "x"), "2024-09-4-4-060-08-09-q1");
    }

    #[test]
    fn every_item_formats_the_first_and_the_last_time_and_matches_its_own_text() {
        for time in [UnixNanos(0), LEAP_DAY, UnixNanos(u64::MAX)] {
            for item in &DATE_ITEMS {
                let made = item.expand(timestamp(time));
                assert_eq!(item.prefix_len(&made), Some(made.len()), "{} made {made}", item.format);
            }
        }
    }

    #[test]
    fn a_field_cannot_lead_out_of_the_base_directory() {
        assert_eq!(expand("events/{listener}/x", "../../etc"), "events/______etc/x");
        assert_eq!(expand("events/{listener}/x", ".."), "events/__/x");
        assert_eq!(expand("events/.{listener}./x", ""), "events/._./x");
        assert_eq!(expand("events/{listener}", "a\0b/ü\n"), "events/a_b___");
    }

    #[test]
    fn the_base_is_the_directories_before_the_first_placeholder() {
        for (template, base) in [
            ("events/%Y/{protocol}", "events"),
            ("events/a-%Y/b/c", "events"),
            ("/a/b/c.log", "/a/b"),
            ("/%Y", "/"),
            ("%Y/x", ""),
            ("x", ""),
        ] {
            assert_eq!(Template::parse(template).unwrap().base(), Path::new(base), "{template}");
        }
    }

    #[test]
    fn an_invalid_path_is_rejected_with_the_part_at_fault() {
        for (template, named) in [
            ("", "empty"),
            ("events/", "ends in `/`"),
            ("/", "ends in `/`"),
            (".", "names no file"),
            ("events/.", "names no file"),
            ("../events", "`..`"),
            ("events/../../etc/passwd", "`..`"),
            ("events/%Y/..", "`..`"),
            ("events/{host}", "`{host}`"),
            ("events/{}", "`{}`"),
            ("events/{protocol", "`{protocol`"),
            ("events/{proto/col}", "`{proto`"),
            ("events/protocol}", "`}`"),
            ("events/%D", "`%D`"),
            ("events/%c", "`%c`"),
            ("events/%x", "`%x`"),
            ("events/%n", "`%n`"),
            ("events/%T", "`%T`"),
            ("events/%y", "`%y`"),
            ("events/%f", "`%f`"),
            ("events/%-d", "`%-`"),
            ("events/%Q", "`%Q`"),
            ("events/%é", "`%é`"),
            ("events/%", "`%`"),
            ("events/%/x", "`%`"),
            ("a\0b", "control"),
            ("a\nb", "control"),
        ] {
            let error = Template::parse(template).unwrap_err();
            assert!(error.contains(named), "{template:?}: {error}");
        }
    }

    #[test]
    fn only_names_that_an_expansion_can_have_are_recognized() {
        let template = Template::parse("events/%Y-%m-%d/{protocol}-{listener}.ndjson").unwrap();
        assert!(template.could_name(0, "2024-02-29"));
        for foreign in ["2024-13-01", "2024-2-29", "2024-02-29x", "+024-02-29", "backup", ""] {
            assert!(!template.could_name(0, foreign), "{foreign}");
        }
        assert!(template.could_name(1, "datadog-web-1.ndjson"));
        for foreign in ["datadog.ndjson", "-.ndjson", "a-b.ndjson.bak", "a-b.c.ndjson", "ä-b.ndjson"] {
            assert!(!template.could_name(1, foreign), "{foreign}");
        }
        assert!(!template.could_name(2, "x"));
        let template = Template::parse("events/{kind}/{kind}-{protocol}").unwrap();
        assert!(template.could_name(0, "metric") && !template.could_name(0, "metrics"));
        assert!(template.could_name(1, "log-zico") && !template.could_name(1, "x-zico"));
    }

    #[test]
    fn names_of_all_dates_are_the_same_undated_and_those_of_another_listener_are_not() {
        let template = Template::parse("events/%Y-%m-%d/{listener}-%H.ndjson").unwrap();
        assert_eq!(template.undated(0, "2024-02-29").as_deref(), Some("%Y-%m-%d"));
        assert_eq!(template.undated(1, "web-13.ndjson").as_deref(), Some("web-%H.ndjson"));
        assert_eq!(template.undated(1, "web-13-14.ndjson").as_deref(), Some("web-13-%H.ndjson"));
        assert_eq!(template.undated(1, "web-99.ndjson"), None);
    }

    #[test]
    fn a_path_is_current_until_its_date_has_passed() {
        let template = Template::parse("events/%Y-%m-%d/{protocol}.ndjson").unwrap();
        let path = template.expand(LEAP_DAY, "datadog", "x", Kind::Span);
        assert!(template.is_current(&path, LEAP_DAY));
        assert!(!template.is_current(&path, UnixNanos(LEAP_DAY.0 + 86_400_000_000_000)));
        assert!(!template.is_current(Path::new("elsewhere/2024-02-29/datadog.ndjson"), LEAP_DAY));
        let undated = Template::parse("{protocol}.ndjson").unwrap();
        assert!(undated.is_current(Path::new("datadog.ndjson"), LEAP_DAY));
    }
}
