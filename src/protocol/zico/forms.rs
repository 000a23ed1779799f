//! Bodies that are not CBOR: registrations and session requests in JSON or EDN, and the form of `/submit/agent`
//! (section 1.4).

mod packing;

use std::fmt;

use serde_json::{Map, Value};

use super::agents::{Opening, Registration};
use tributary_codec::base64;
use tributary_codec::edn;
use tributary_event::ResourceValue;

pub use packing::{Packing, Unpacking};

/// Why a body cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormError {
    /// The offset in the body, in bytes.
    pub offset: usize,
    /// The fault there. Never contains the value of a key.
    pub what: String,
}

/// The longest key, name, app or env, in bytes.
const MAX_TEXT_BYTES: usize = 1024;
/// The number of attributes of an agent.
const MAX_ATTRIBUTES: usize = 64;
/// The size of all attributes of an agent in bytes: they are in the resource of every event.
const MAX_ATTRIBUTE_BYTES: usize = 16 << 10;

impl FormError {
    fn new(offset: usize, what: impl Into<String>) -> Self {
        FormError { offset, what: what.into() }
    }
}

impl fmt::Display for FormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for FormError {}

/// Reads the body of `/agent/register`: JSON, or EDN if the content type says so (rules 2 and 3).
///
/// # Errors
/// It is neither; or `rkey`, `name`, `app` or `env` is missing, no text, or too long; or `attrs` is no map, or too large.
pub fn registration(body: &[u8], content_type: Option<&str>) -> Result<Registration, FormError> {
    let mut map = map(body, content_type)?;
    let attrs = match map.remove("attrs") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Object(attrs)) => attributes(attrs)?,
        Some(_) => return Err(FormError::new(0, "`attrs` is not a map")),
    };
    Ok(Registration {
        rkey: required(&mut map, "rkey")?,
        name: required(&mut map, "name")?,
        app: required(&mut map, "app")?,
        env: required(&mut map, "env")?,
        uuid: text(&mut map, "uuid")?,
        akey: text(&mut map, "akey")?,
        attrs,
    })
}

/// Reads the body of `/agent/session`, JSON or EDN: `authkey`, and the agent as `uuid` or `id` (rule 3).
///
/// # Errors
/// It is neither JSON nor EDN; or something is missing.
pub fn opening(body: &[u8], content_type: Option<&str>) -> Result<Opening, FormError> {
    let mut map = map(body, content_type)?;
    if let Some(Value::Number(number)) = map.get("id") {
        let number = number.to_string();
        map.insert("id".to_owned(), Value::String(number));
    }
    let agent = text(&mut map, "uuid")?.or(text(&mut map, "id")?);
    let agent = agent.ok_or_else(|| FormError::new(0, "`uuid` is missing, and `id` is too"))?;
    Ok(Opening::new(&agent, &required(&mut map, "authkey")?))
}

/// The body of `/submit/agent`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submission {
    /// The sender: a UUID, as sent.
    pub host: String,
    /// The compression of its bytes, by the field's name.
    pub packing: Packing,
    /// The bytes after base64 decoding.
    pub packed: Vec<u8>,
}

impl Submission {
    /// Starts to decompress, to at most `limit` bytes.
    pub fn unpack(self, limit: usize) -> Unpacking {
        Unpacking::new(self.packing, self.packed, limit)
    }
}

/// Reads the body of `/submit/agent`: `host`, and exactly one of `data`, `zdata` and `ldata` (rule 31). Other fields are
/// ignored.
///
/// # Errors
/// It has another form, or its data are not base64.
pub fn submission(body: &[u8]) -> Result<Submission, FormError> {
    let (mut host, mut packed) = (None, None);
    let mut at = 0;
    for field in body.split(|byte| *byte == b'&') {
        let (start, length) = (at, field.len());
        at += length + 1;
        let (name, value) = match field.iter().position(|byte| *byte == b'=') {
            Some(equals) => (&field[..equals], &field[equals + 1..]),
            None => (field, &field[length..]),
        };
        let place = start + length - value.len();
        let (name, _) = unescape(name, start, b' ')?;
        let packing = match name.as_slice() {
            b"host" => {
                let (value, _) = unescape(value, place, b' ')?;
                let value = String::from_utf8(value).ok().filter(|value| (1..=MAX_TEXT_BYTES).contains(&value.len()));
                let value = value.ok_or_else(|| FormError::new(place, "`host` is empty, too long, or not text"))?;
                if host.replace(value).is_some() {
                    return Err(FormError::new(start, "`host` twice"));
                }
                continue;
            }
            b"data" => Packing::Plain,
            b"zdata" => Packing::Deflate,
            b"ldata" => Packing::Lz4,
            _ => continue,
        };
        if packed.is_some() {
            return Err(FormError::new(start, EXACTLY_ONE));
        }
        // Base64 contains plus signs, which clients may forget to escape, and no spaces.
        let (value, escapes) = unescape(value, place, b'+')?;
        let bytes = base64::decode(&value).map_err(|error| {
            let before = escapes.partition_point(|escape| *escape < error.offset);
            FormError::new(place + error.offset + 2 * before, format!("base64: {}", error.what))
        })?;
        packed = Some((packing, bytes));
    }
    let (packing, packed) = packed.ok_or_else(|| FormError::new(body.len(), EXACTLY_ONE))?;
    let host = host.ok_or_else(|| FormError::new(body.len(), "`host` is missing"))?;
    Ok(Submission { host, packing, packed })
}

const EXACTLY_ONE: &str = "expected exactly one of `data`, `zdata` and `ldata`";

/// Decodes the escapes of a part of a form that begins at `place`; `+` becomes `plus`. Also returns the places of escaped
/// bytes in the result.
fn unescape(part: &[u8], place: usize, plus: u8) -> Result<(Vec<u8>, Vec<usize>), FormError> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut escapes = Vec::new();
    let mut at = 0;
    while let Some(&byte) = part.get(at) {
        if byte == b'%' {
            let digit = |at: usize| char::from(*part.get(at)?).to_digit(16);
            let pair = digit(at + 1).zip(digit(at + 2));
            let (high, low) = pair.ok_or_else(|| FormError::new(place + at, "a `%` without two hexadecimal digits"))?;
            escapes.push(bytes.len());
            bytes.push((high << 4 | low) as u8);
            at += 3;
        } else {
            bytes.push(if byte == b'+' { plus } else { byte });
            at += 1;
        }
    }
    Ok((bytes, escapes))
}

/// The map in a body.
fn map(body: &[u8], content_type: Option<&str>) -> Result<Map<String, Value>, FormError> {
    let is_edn = content_type.is_some_and(|name| name.to_ascii_lowercase().trim_start().starts_with("application/edn"));
    let value = if is_edn {
        let text = str::from_utf8(body).map_err(|error| FormError::new(error.valid_up_to(), "EDN: not UTF-8"))?;
        edn::read(text).map_err(|error| FormError::new(error.offset, format!("EDN: {}", error.what)))?
    } else {
        serde_json::from_slice(body).map_err(|error| match error.is_eof() {
            true => FormError::new(body.len(), "JSON: it ends inside a value"),
            // The library's message could quote a key.
            false => {
                FormError::new(offset(body, error.line(), error.column()), "JSON: not a value, or nested too deeply")
            }
        })?
    };
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(FormError::new(0, "the body is not a map")),
    }
}

/// The offset of a line and column, both from 1.
fn offset(body: &[u8], line: usize, column: usize) -> usize {
    let lines = body.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1));
    (lines.map(<[u8]>::len).sum::<usize>() + column.saturating_sub(1)).min(body.len())
}

fn required(map: &mut Map<String, Value>, key: &str) -> Result<String, FormError> {
    text(map, key)?.ok_or_else(|| FormError::new(0, format!("`{key}` is missing")))
}

/// The text of this key; `None`: it is missing or null.
fn text(map: &mut Map<String, Value>, key: &str) -> Result<Option<String>, FormError> {
    match map.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= MAX_TEXT_BYTES => Ok(Some(text)),
        Some(Value::String(_)) => Err(FormError::new(0, format!("`{key}` is longer than {MAX_TEXT_BYTES} bytes"))),
        Some(_) => Err(FormError::new(0, format!("`{key}` is not a text"))),
    }
}

fn attributes(map: Map<String, Value>) -> Result<Vec<(String, ResourceValue)>, FormError> {
    if map.len() > MAX_ATTRIBUTES {
        return Err(FormError::new(0, format!("`attrs` has more than {MAX_ATTRIBUTES} attributes")));
    }
    let mut bytes = 0;
    let mut attributes = Vec::new();
    for (key, value) in map {
        let value = match value {
            Value::Null => continue,
            Value::Bool(value) => ResourceValue::Bool(value),
            Value::String(text) => ResourceValue::Text(text),
            Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(number), ..) => ResourceValue::I64(number),
                (_, Some(number), _) => ResourceValue::U64(number),
                (_, _, Some(number)) => ResourceValue::F64(number),
                _ => ResourceValue::Text(number.to_string()),
            },
            nested => ResourceValue::Text(nested.to_string()),
        };
        bytes += key.len() + if let ResourceValue::Text(text) = &value { text.len() } else { 8 };
        attributes.push((key, value));
    }
    if bytes > MAX_ATTRIBUTE_BYTES {
        return Err(FormError::new(0, format!("`attrs` is larger than {MAX_ATTRIBUTE_BYTES} bytes")));
    }
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: Option<&str> = Some("application/json");
    const EDN: Option<&str> = Some("Application/EDN; charset=utf-8");

    #[test]
    fn a_registration_reads_the_same_in_json_and_edn() {
        let json = br#"{"rkey":"k","env":"TST","name":"h","app":"demo","uuid":null,"akey":"a",
            "attrs":{"a":-1,"b":"text","c":[1,{"x":null}],"d":null,"e":true,"f":1.5,"g":18446744073709551615}}"#;
        let edn = br#"{:rkey "k" :env "TST" :name "h" :app "demo" :akey "a"
            :attrs {:a -1 :b "text" :c [1 {:x nil}] :d nil :e true :f 1.5 :g 18446744073709551615}}"#;
        let attrs = [
            ("a", ResourceValue::I64(-1)),
            ("b", "text".into()),
            ("c", "[1,{\"x\":null}]".into()),
            ("e", ResourceValue::Bool(true)),
            ("f", ResourceValue::F64(1.5)),
            ("g", ResourceValue::U64(u64::MAX)),
        ];
        let expected = Registration {
            rkey: "k".into(),
            name: "h".into(),
            app: "demo".into(),
            env: "TST".into(),
            uuid: None,
            akey: Some("a".into()),
            attrs: attrs.map(|(key, value)| (key.to_owned(), value)).to_vec(),
        };
        assert_eq!(registration(json, JSON).unwrap(), expected);
        assert_eq!(registration(json, None).unwrap(), expected);
        assert_eq!(registration(edn, EDN).unwrap(), expected);
        assert!(registration(edn, JSON).is_err());
    }

    #[test]
    fn errors_name_the_missing_field_and_show_no_key() {
        for (body, what) in [
            (r#"{"name":"h","app":"a","env":"e"}"#, "at 0: `rkey` is missing"),
            (r#"{"rkey":"secret","name":null,"app":"a","env":"e"}"#, "at 0: `name` is missing"),
            (r#"{"rkey":"secret","name":["h"],"app":"a","env":"e"}"#, "at 0: `name` is not a text"),
            (r#"{"rkey":"secret","name":"h","app":"a","env":"e","attrs":[]}"#, "at 0: `attrs` is not a map"),
            (r#"[1]"#, "at 0: the body is not a map"),
            ("{", "at 1: JSON: it ends inside a value"),
            ("{\n\"rkey\": secret", "at 10: JSON: not a value, or nested too deeply"),
        ] {
            assert_eq!(registration(body.as_bytes(), None).unwrap_err().to_string(), what, "{body}");
        }
        let long = format!(r#"{{"rkey":"k","name":"{}","app":"a","env":"e"}}"#, "h".repeat(1025));
        assert_eq!(registration(long.as_bytes(), None).unwrap_err().what, "`name` is longer than 1024 bytes");
        let attrs: Vec<String> = (0..65).map(|number| format!("\"{number}\":1")).collect();
        let many = format!(r#"{{"rkey":"k","name":"h","app":"a","env":"e","attrs":{{{}}}}}"#, attrs.join(","));
        assert_eq!(registration(many.as_bytes(), None).unwrap_err().what, "`attrs` has more than 64 attributes");
        let deep = format!(r#"{{"rkey":{}"#, "[".repeat(100_000));
        assert!(registration(deep.as_bytes(), None).is_err());
        assert!(
            !format!(
                "{:?}",
                registration(br#"{"rkey":"secret","name":"h","app":"a","env":"e","akey":"secret"}"#, None)
            )
            .contains("secret")
        );
    }

    #[test]
    fn a_session_names_its_agent_by_uuid_or_number() {
        let agent = |body: &str| opening(body.as_bytes(), None).map(|opening| opening.agent);
        assert_eq!(agent(r#"{"authkey":"k","uuid":"u"}"#).unwrap(), "u");
        assert_eq!(agent(r#"{"authkey":"k","uuid":null,"id":"7"}"#).unwrap(), "7");
        assert_eq!(agent(r#"{"authkey":"k","id":7}"#).unwrap(), "7");
        assert_eq!(opening(b"{:authkey \"k\" :id 7}", EDN).unwrap(), Opening::new("7", "k"));
        for body in [
            "{}",
            r#"{"authkey":"k"}"#,
            r#"{"uuid":"u"}"#,
            r#"{"uuid":"u","authkey":1}"#,
            r#"{"uuid":{},"authkey":"k"}"#,
        ] {
            assert!(agent(body).is_err(), "{body}");
        }
    }

    #[test]
    fn a_form_has_a_host_and_exactly_one_data_field() {
        let form = |body: &str| submission(body.as_bytes());
        let expected = |packing| Submission { host: "a b/\u{e9}".into(), packing, packed: vec![0xFB, 0xFF, 0xBF, 1] };
        let plain = form("host=a+b%2F%C3%A9&data=+%2f%2B%2FAQ%3D%3D&other=%20").unwrap();
        assert_eq!(plain, expected(Packing::Plain));
        assert_eq!(form("zdata=+/+/AQ==&host=a%20b/%c3%a9").unwrap(), expected(Packing::Deflate));
        assert_eq!(form("ldata=%2B/%2B/%0D%0AAQ==&host=a+b/%C3%A9&").unwrap(), expected(Packing::Lz4));
        for (body, fault) in [
            ("host=a", "at 6: expected exactly one of `data`, `zdata` and `ldata`"),
            ("", "at 0: expected exactly one of `data`, `zdata` and `ldata`"),
            ("host=a&data=gg%3D%3D&zdata=gg%3D%3D", "at 21: expected exactly one of `data`, `zdata` and `ldata`"),
            ("host=a&data=%21%21%21", "at 12: base64: a character that base64 does not have"),
            ("host=a&data=Z%6D9%21", "at 17: base64: a character that base64 does not have"),
            ("host=a&data=Zg", "at 14: base64: the last group is incomplete"),
            ("data=gg%3D%3D", "at 13: `host` is missing"),
            ("host=&data=", "at 5: `host` is empty, too long, or not text"),
            ("host=%ff&data=", "at 5: `host` is empty, too long, or not text"),
            ("host=a&host=b&data=", "at 7: `host` twice"),
            ("host=a%&data=", "at 6: a `%` without two hexadecimal digits"),
            ("data=%4", "at 5: a `%` without two hexadecimal digits"),
        ] {
            assert_eq!(form(body).unwrap_err().to_string(), fault, "{body}");
        }
    }
}
