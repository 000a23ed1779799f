//! The check of a body before anything of it is written: one bad field refuses all of it.

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue, Varints};
use tributary_codec::reader::{DecodeError, DecodeErrorKind};

use super::profile_dictionary::TableSizes;
use super::schema::{DictionaryTable, FieldSchema, FieldType, MessageSchema};

/// The deepest nesting of messages. Other readers of protobuf stop here, too.
pub(super) const MAX_DEPTH: usize = 100;

/// Checks the types of all known fields of a message that begins at the offset `base` of the body. Unknown fields are skipped.
/// `sizes`: the numbers of entries of the tables, which indexes must be below; `None`: the request is not of profiles, and has no
/// meaning for indexes.
///
/// # Errors
/// What is wrong where.
pub(super) fn check(
    message: &[u8],
    base: usize,
    of: &MessageSchema,
    sizes: Option<&TableSizes>,
    depth: usize,
) -> Result<(), DecodeError> {
    if depth > MAX_DEPTH {
        let kind = DecodeErrorKind::TooLarge { found: depth as u64, limit: MAX_DEPTH as u64, key: "the nesting limit" };
        return Err(DecodeError { field: of.name, offset: base, kind });
    }
    let mut fields = ProtobufFields::of(message);
    loop {
        let at = base + message.len() - fields.rest().len();
        let Some(found) = fields.next() else { break };
        if found.number == 0 {
            return Err(invalid(of.name, at, 0, "a field with a number above 0"));
        }
        let Some(field) = of.field(found.number) else { continue };
        let end = base + message.len() - fields.rest().len();
        match (field.of, found.value) {
            (FieldType::Message(inner), ProtobufValue::Bytes(bytes)) => {
                check(bytes, end - bytes.len(), inner, sizes, depth + 1)?;
            }
            (FieldType::Index(table), value) => check_index(field, table, sizes, value, at)?,
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
        (FieldType::Uint | FieldType::Int, ProtobufValue::Bytes(bytes)) if field.is_repeated => {
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
        (FieldType::Bool | FieldType::Uint | FieldType::Int | FieldType::Sint | FieldType::Index(_), _) => "a varint",
    };
    Err(invalid(field.name, at, wire_type(value), expected))
}

/// An index, or a packed list of them.
fn check_index(
    field: &FieldSchema,
    table: DictionaryTable,
    sizes: Option<&TableSizes>,
    value: ProtobufValue<'_>,
    at: usize,
) -> Result<(), DecodeError> {
    let outside = |index: &u64| *index > 0 && sizes.is_some_and(|sizes| *index >= sizes.of(table) as u64);
    let found = match value {
        ProtobufValue::Varint(index) => Some(index).filter(outside),
        ProtobufValue::Bytes(bytes) if field.is_repeated => {
            let mut varints = Varints::of(bytes);
            let found = varints.by_ref().find(outside);
            if found.is_none() && !varints.is_valid() {
                return Err(invalid(field.name, at, 2, "a list of varints"));
            }
            found
        }
        _ => return Err(invalid(field.name, at, wire_type(value), "a varint")),
    };
    let expected = match table {
        DictionaryTable::Mappings => "an index of mappingTable",
        DictionaryTable::Locations => "an index of locationTable",
        DictionaryTable::Functions => "an index of functionTable",
        DictionaryTable::Links => "an index of linkTable",
        DictionaryTable::Strings => "an index of stringTable",
        DictionaryTable::Attributes => "an index of attributeTable",
        DictionaryTable::Stacks => "an index of stackTable",
    };
    found.map_or(Ok(()), |found| Err(invalid(field.name, at, found, expected)))
}

/// The type of a value on the wire.
fn wire_type(value: ProtobufValue<'_>) -> u64 {
    match value {
        ProtobufValue::Varint(_) => 0,
        ProtobufValue::Bytes(_) => 2,
        ProtobufValue::Fixed(bytes) => {
            if bytes.len() == 8 {
                1
            } else {
                5
            }
        }
    }
}

pub(super) fn invalid(field: &'static str, offset: usize, found: u64, expected: &'static str) -> DecodeError {
    DecodeError { field, offset, kind: DecodeErrorKind::Invalid { found, expected } }
}
