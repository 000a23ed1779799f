//! The check of a body before anything of it is written: one bad field refuses all of it.

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue, Varints};
use tributary_codec::reader::{DecodeError, DecodeErrorKind};

use super::schema::{FieldSchema, FieldType, MessageSchema};

/// The deepest nesting of messages. Other readers of protobuf stop here, too.
pub(super) const MAX_DEPTH: usize = 100;

/// Checks the types of all known fields of a message that begins at the offset `base` of the body. Unknown fields are skipped.
///
/// # Errors
/// What is wrong where.
pub(super) fn check(message: &[u8], base: usize, of: &MessageSchema, depth: usize) -> Result<(), DecodeError> {
    if depth > MAX_DEPTH {
        let kind = DecodeErrorKind::TooLarge { found: depth as u64, limit: MAX_DEPTH as u64, key: "the nesting limit" };
        return Err(DecodeError { field: of.name, offset: base, kind });
    }
    let mut fields = ProtobufFields::of(message);
    let mut place = 0;
    loop {
        let at = base + message.len() - fields.rest().len();
        let Some(found) = fields.next() else { break };
        if found.number == 0 {
            return Err(invalid(of.name, at, 0, "a field with a number above 0"));
        }
        let Some(known) = of.place(found.number, place) else { continue };
        place = known;
        let field = &of.fields[place];
        let end = at + found.whole.len();
        match (field.of, found.value) {
            (FieldType::Message(inner), ProtobufValue::Bytes(bytes)) => {
                check(bytes, end - bytes.len(), inner, depth + 1)?;
            }
            (of, value) => check_value(field, of, value, at)?,
        }
    }
    match fields.rest() {
        [] => Ok(()),
        [first, ..] => {
            let at = base + message.len() - fields.rest().len();
            Err(invalid(of.name, at, (*first).into(), "a field that ends inside its message"))
        }
    }
}

fn check_value(field: &FieldSchema, of: FieldType, value: ProtobufValue<'_>, at: usize) -> Result<(), DecodeError> {
    let expected = match (of, value) {
        (FieldType::Text | FieldType::Bytes, ProtobufValue::Bytes(_))
        | (FieldType::Bool | FieldType::Uint | FieldType::Int | FieldType::Sint, ProtobufValue::Varint(_)) => {
            return Ok(());
        }
        (FieldType::Id(len), ProtobufValue::Bytes(bytes)) => match (bytes.len(), len) {
            (0, _) | (16, 16) | (8, 8) => return Ok(()),
            (found, 16) => return Err(invalid(field.name, at, found as u64, "16 bytes or none")),
            (found, _) => return Err(invalid(field.name, at, found as u64, "8 bytes or none")),
        },
        (FieldType::Fixed64 | FieldType::Sfixed64 | FieldType::Double, ProtobufValue::Fixed(bytes)) => {
            if bytes.len() == 8 {
                return Ok(());
            }
            "8 bytes"
        }
        (FieldType::Fixed32, ProtobufValue::Fixed(bytes)) => {
            if bytes.len() == 4 {
                return Ok(());
            }
            "4 bytes"
        }
        // A packed list.
        (FieldType::Fixed64 | FieldType::Double, ProtobufValue::Bytes(bytes)) if field.is_repeated => {
            if bytes.len().is_multiple_of(8) {
                return Ok(());
            }
            "a list of elements of 8 bytes"
        }
        (FieldType::Uint, ProtobufValue::Bytes(bytes)) if field.is_repeated => {
            let mut varints = Varints::of(bytes);
            varints.by_ref().for_each(drop);
            if varints.is_valid() {
                return Ok(());
            }
            "a list of varints"
        }
        (FieldType::Text, _) => "a text",
        (FieldType::Bytes | FieldType::Id(_), _) => "bytes",
        (FieldType::Message(_), _) => "a message",
        (FieldType::Fixed32, _) => "4 bytes",
        (FieldType::Fixed64 | FieldType::Sfixed64 | FieldType::Double, _) => "8 bytes",
        (FieldType::Bool | FieldType::Uint | FieldType::Int | FieldType::Sint, _) => "a varint",
    };
    let found = match value {
        ProtobufValue::Varint(_) => 0,
        ProtobufValue::Bytes(_) => 2,
        ProtobufValue::Fixed(bytes) => {
            if bytes.len() == 8 {
                1
            } else {
                5
            }
        }
    };
    Err(invalid(field.name, at, found, expected))
}

pub(super) fn invalid(field: &'static str, offset: usize, found: u64, expected: &'static str) -> DecodeError {
    DecodeError { field, offset, kind: DecodeErrorKind::Invalid { found, expected } }
}
