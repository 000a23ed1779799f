//! JSON bodies (OTLP 1.10, "JSON Protobuf Encoding"): written as protobuf, so that the same readers decode them. Ids are hex digits,
//! 64-bit integers texts or numbers, enumerations numbers; unknown fields are ignored.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use tributary_codec::base64;
use tributary_codec::protobuf::{
    len_tag, push_bytes_field, push_fixed32_field, push_fixed64_field, push_varint_field, push_zigzag_field,
};

use tributary_event::hex_bytes;
use tributary_protocol::JSON_NUMBER;

use super::schema::{FieldSchema, FieldType, MessageSchema};

/// The bytes of each length of a message, which is known only behind it: a varint of fixed width.
const LENGTH_BYTES: usize = 5;

/// The same message as protobuf; at most three times as long, as a message `{}` of two bytes and a comma takes six.
pub(super) fn to_protobuf(json: &[u8], of: &'static MessageSchema) -> Result<Vec<u8>, serde_json::Error> {
    let mut out = Vec::with_capacity(json.len() / 2);
    let mut reader = serde_json::Deserializer::from_slice(json);
    MessageWriter { of, out: &mut out }.deserialize(&mut reader).and_then(|()| reader.end())?;
    Ok(out)
}

/// Writes the fields of a message. Nesting is limited by the JSON reader.
struct MessageWriter<'a> {
    of: &'static MessageSchema,
    out: &'a mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for MessageWriter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MessageWriter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object: {}", self.of.name)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(FieldName(name)) = members.next_key()? {
            if name == JSON_NUMBER {
                return Err(A::Error::custom(format_args!("found a number, expected an object: {}", self.of.name)));
            }
            match self.of.fields.iter().find(|field| field.name == name) {
                Some(field) => members.next_value_seed(FieldWriter { field, is_element: false, out: self.out })?,
                None => members.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }
}

/// The name of a member: borrowed unless it has escapes.
struct FieldName<'de>(Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for FieldName<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = FieldName<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<FieldName<'de>, E> {
                Ok(FieldName(name.into()))
            }

            fn visit_str<E>(self, name: &str) -> Result<FieldName<'de>, E> {
                Ok(FieldName(name.to_owned().into()))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

/// Writes a field: its tag and its value, for each element of a list.
struct FieldWriter<'a> {
    field: &'static FieldSchema,
    /// Of a list.
    is_element: bool,
    out: &'a mut Vec<u8>,
}

impl FieldWriter<'_> {
    fn wrong<E: serde::de::Error>(&self, found: &dyn fmt::Display) -> E {
        E::custom(format_args!("{}: found {found}, expected {}", self.field.name, expected(self.field.of)))
    }

    /// A number of any type, as the digits that were sent.
    fn number<E: serde::de::Error>(self, digits: &str) -> Result<(), E> {
        let (out, number) = (self.out, self.field.number);
        // An integer may have a fraction of zeros or an exponent, as 1.0 and 1e3.
        let whole = || {
            let value = digits.parse::<f64>().ok().filter(|value| value.fract() == 0.0)?;
            (value.abs() < 9e15).then_some(value as i64)
        };
        let unsigned = || digits.parse::<u64>().ok().or_else(|| u64::try_from(whole()?).ok());
        let signed = || digits.parse::<i64>().ok().or_else(whole);
        let written = match self.field.of {
            FieldType::Double => digits.parse().ok().map(|value: f64| push_fixed64_field(out, number, value.to_bits())),
            FieldType::Uint | FieldType::Index(_) => unsigned().map(|value| push_varint_field(out, number, value)),
            FieldType::Fixed64 => unsigned().map(|value| push_fixed64_field(out, number, value)),
            FieldType::Fixed32 => unsigned()
                .and_then(|value| u32::try_from(value).ok())
                .map(|value| push_fixed32_field(out, number, value)),
            FieldType::Int => signed().map(|value| push_varint_field(out, number, value as u64)),
            FieldType::Sint => signed().map(|value| push_zigzag_field(out, number, value as i32)),
            FieldType::Sfixed64 => signed().map(|value| push_fixed64_field(out, number, value as u64)),
            FieldType::Text | FieldType::Bytes | FieldType::Id(_) | FieldType::Bool | FieldType::Message(_) => None,
        };
        written.ok_or_else(|| {
            let shown: String = digits.chars().take(40).collect();
            E::custom(format_args!("{}: found {shown}, expected {}", self.field.name, expected(self.field.of)))
        })
    }
}

/// What a field must be, in words.
fn expected(of: FieldType) -> &'static str {
    match of {
        FieldType::Text => "a text",
        FieldType::Bytes => "a text in base64",
        FieldType::Id(16) => "32 hex digits, or none",
        FieldType::Id(_) => "16 hex digits, or none",
        FieldType::Bool => "true or false",
        FieldType::Uint | FieldType::Index(_) | FieldType::Fixed32 | FieldType::Fixed64 => {
            "an integer without sign, as a number or a text"
        }
        FieldType::Int | FieldType::Sint | FieldType::Sfixed64 => {
            "an integer, as a number or a text; names of enumerations are not allowed"
        }
        FieldType::Double => "a number",
        FieldType::Message(_) => "an object",
    }
}

impl<'de> DeserializeSeed<'de> for FieldWriter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldWriter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field.name, expected(self.field.of))
    }

    /// Null: the field is absent.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        match self.field.of {
            FieldType::Bool => {
                push_varint_field(self.out, self.field.number, value.into());
                Ok(())
            }
            _ => Err(self.wrong(&value)),
        }
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        self.number(&number.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.number(&number.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        self.number(&number.to_string())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        let number = self.field.number;
        let shown = || text.chars().take(40).collect::<String>();
        match self.field.of {
            FieldType::Text => push_bytes_field(self.out, number, text.as_bytes()),
            FieldType::Bytes => match base64::decode(text.as_bytes()) {
                Ok(bytes) => push_bytes_field(self.out, number, &bytes),
                Err(_) => return Err(self.wrong(&format_args!("{:?}", shown()))),
            },
            FieldType::Id(len) => match hex_bytes(text).filter(|bytes| bytes.is_empty() || bytes.len() == len) {
                Some(bytes) => push_bytes_field(self.out, number, &bytes),
                None => return Err(self.wrong(&format_args!("{:?}", shown()))),
            },
            FieldType::Bool | FieldType::Message(_) => return Err(self.wrong(&format_args!("{:?}", shown()))),
            FieldType::Double => {
                let value = match text {
                    "NaN" => f64::NAN,
                    "Infinity" => f64::INFINITY,
                    "-Infinity" => f64::NEG_INFINITY,
                    _ => return self.number(text),
                };
                push_fixed64_field(self.out, number, value.to_bits());
            }
            _ => return self.number(text),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        if self.is_element || !self.field.is_repeated {
            return Err(self.wrong(&"a list"));
        }
        let FieldWriter { field, out, .. } = self;
        while items.next_element_seed(FieldWriter { field, is_element: true, out })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let FieldType::Message(of) = self.field.of else {
            return match members.next_key::<FieldName<'_>>()? {
                Some(FieldName(name)) if name == JSON_NUMBER => self.number(&members.next_value::<String>()?),
                _ => Err(self.wrong(&"an object")),
            };
        };
        if self.field.is_repeated && !self.is_element {
            return Err(A::Error::custom(format_args!("{}: found an object, expected a list", self.field.name)));
        }
        self.out.push(len_tag(self.field.number));
        let start = self.out.len();
        self.out.extend_from_slice(&[0; LENGTH_BYTES]);
        MessageWriter { of, out: self.out }.visit_map(members)?;
        let mut length = self.out.len() - start - LENGTH_BYTES;
        for byte in &mut self.out[start..start + LENGTH_BYTES] {
            *byte = length as u8 | 0x80;
            length >>= 7;
        }
        self.out[start + LENGTH_BYTES - 1] &= 0x7F;
        Ok(())
    }
}
