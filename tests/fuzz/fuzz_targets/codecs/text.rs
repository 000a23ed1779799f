//! Base64, modified UTF-8 and EDN, compared with other implementations.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use bytes::BytesMut;
use serde_json::Value;
use tributary::codec::mutf8::Repair;
use tributary::codec::{base64 as ours, edn, mutf8, text};

pub fn property(input: &[u8]) {
    let Some((&[which, number], bytes)) = input.split_first_chunk() else { return };
    match which % 4 {
        0 => base64(bytes),
        1 => modified_utf8(bytes),
        2 => notation(bytes),
        _ => cuts(bytes, usize::from(number)),
    }
}

fn base64(bytes: &[u8]) {
    let config = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    let engine = GeneralPurpose::new(&STANDARD, config);
    let bare: Vec<u8> = bytes.iter().copied().filter(|byte| !b" \t\r\n".contains(byte)).collect();
    match (ours::decode(bytes), engine.decode(&bare)) {
        (Ok(one), Ok(other)) => assert_eq!(one, other),
        (Err(error), Err(_)) => assert!(error.offset <= bytes.len()),
        (one, other) => panic!("{one:?}, not {other:?}"),
    }
    assert_eq!(ours::decode(engine.encode(bytes).as_bytes()).as_deref(), Ok(bytes));
}

fn modified_utf8(bytes: &[u8]) {
    let (text, repair) = mutf8::read(bytes);
    if let Some(units) = units(bytes) {
        let expected = String::from_utf16_lossy(&units);
        let has_lone = char::decode_utf16(units).any(|unit| unit.is_err());
        assert_eq!((&*text, repair), (&*expected, if has_lone { Repair::LoneSurrogates } else { Repair::None }));
    } else if str::from_utf8(bytes).is_err() && !has_surrogates_or_nul(bytes) {
        assert_eq!((&*text, repair), (&*String::from_utf8_lossy(bytes), Repair::InvalidBytes));
    }
    let mut written = BytesMut::new();
    mutf8::write(&text, &mut written);
    assert_eq!(written.len(), mutf8::encoded_len(&text));
    assert!(!written.contains(&0) && !written.iter().any(|byte| *byte >= 0xF0));
    let (again, repair) = mutf8::read(&written);
    assert_eq!((again, repair), (text, Repair::None));
}

/// The UTF-16 of strict modified UTF-8; a plain U+0000 is accepted.
fn units(mut bytes: &[u8]) -> Option<Vec<u16>> {
    let more = |byte: u8| (byte & 0xC0 == 0x80).then_some(u16::from(byte & 0x3F));
    let mut units = Vec::new();
    while let Some(&first) = bytes.first() {
        let (unit, size) = match *bytes {
            [0..=0x7F, ..] => (u16::from(first), 1),
            [0xC0, 0x80, ..] => (0, 2),
            [0xC2..=0xDF, second, ..] => (u16::from(first & 0x1F) << 6 | more(second)?, 2),
            [0xE0..=0xEF, second, third, ..] => {
                let unit = u16::from(first & 0x0F) << 12 | more(second)? << 6 | more(third)?;
                (Some(unit).filter(|unit| *unit >= 0x800)?, 3)
            }
            _ => return None,
        };
        units.push(unit);
        bytes = &bytes[size..];
    }
    Some(units)
}

fn has_surrogates_or_nul(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| matches!(pair, [0xED, 0xA0..=0xBF] | [0xC0, 0x80]))
}

/// JSON is written as EDN and read back. Any text is read without a panic.
fn notation(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Err(error) = edn::read(text) {
        assert!(error.offset <= text.len() && text.is_char_boundary(error.offset), "{error}");
    }
    if let Ok(mut value) = serde_json::from_str::<Value>(text) {
        round(&mut value);
        let mut written = String::new();
        let is_shallow = write(&value, &mut written, 0);
        match edn::read(&written) {
            Ok(read) => assert_eq!(read, value, "{written}"),
            Err(error) => assert!(!is_shallow, "{error} in {written}"),
        }
    }
}

/// EDN's numbers are integers of 64 bits and doubles; those of JSON here have any digits.
fn round(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let (signed, unsigned) = (number.as_i64().map(Value::from), number.as_u64().map(Value::from));
            // Null if it is not finite.
            *value = signed.or(unsigned).unwrap_or_else(|| Value::from(number.as_f64()));
        }
        Value::Array(items) => items.iter_mut().for_each(round),
        Value::Object(members) => members.values_mut().for_each(round),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Whether the nesting is within the depth that every reader accepts.
fn write(value: &Value, out: &mut String, depth: usize) -> bool {
    match value {
        Value::Null => out.push_str("nil"),
        Value::Array(items) => {
            out.push('[');
            let is_shallow = items.iter().fold(true, |is_shallow, item| {
                out.push(' ');
                write(item, out, depth + 1) && is_shallow
            });
            out.push(']');
            return is_shallow;
        }
        Value::Object(members) => {
            out.push('{');
            let is_shallow = members.iter().fold(true, |is_shallow, (key, value)| {
                out.push(',');
                write(&Value::String(key.clone()), out, depth + 1);
                out.push(' ');
                write(value, out, depth + 1) && is_shallow
            });
            out.push('}');
            return is_shallow;
        }
        Value::String(text) => {
            out.push('"');
            for character in text.chars() {
                match character {
                    '"' | '\\' => out.extend(['\\', character]),
                    '\n' => out.push_str("\\n"),
                    other => out.push(other),
                }
            }
            out.push('"');
        }
        other => out.push_str(&other.to_string()),
    }
    depth <= 60
}

fn cuts(bytes: &[u8], limit: usize) {
    let (text, repaired) = text::repair(bytes);
    assert_eq!((&*text, repaired), (&*String::from_utf8_lossy(bytes), str::from_utf8(bytes).is_err()));
    let cut = text::cut(&text, limit);
    assert!(text.starts_with(cut) && cut.len() <= limit && (text.len() <= limit || limit - cut.len() < 4));
    let cut = text::cut_bytes(bytes, limit);
    assert!(bytes.starts_with(cut) && cut.len() <= limit && (bytes.len() <= limit || limit - cut.len() < 4));
    if str::from_utf8(bytes).is_ok() {
        assert!(str::from_utf8(cut).is_ok());
    }
}
