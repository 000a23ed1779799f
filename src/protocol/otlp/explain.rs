//! Explains the bytes of a body: each field of the messages with its name.

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue, zigzag};
use tributary_explain::value::text;
use tributary_explain::words::{counted, hex, moment};
use tributary_explain::{DecoderError, Sheet};
use tributary_protocol::RequestHead;

use super::check::MAX_DEPTH;
use super::route::{Encoding, GRPC_HEAD_BYTES, Signal};
use super::schema::{FieldSchema, FieldType, MessageSchema};
use super::value::{fixed32, fixed64};

/// Writes the body of a request onto the sheet, with the decoder's faults.
pub fn body(head: &RequestHead, body: &[u8], faults: Vec<DecoderError>, sheet: &mut Sheet) {
    sheet.inner(faults, |sheet| {
        let is_compressed = head.header("content-encoding").is_some_and(|of| of != "identity");
        let mut message = body;
        if Encoding::of(head) == Some(Encoding::Grpc)
            && let Some((frame, rest)) = body.split_first_chunk::<GRPC_HEAD_BYTES>()
        {
            sheet.field(&frame[..1], "compressed", frame[0]);
            sheet.field(&frame[1..], "length", u32::from_be_bytes([frame[1], frame[2], frame[3], frame[4]]));
            message = rest;
            if frame[0] != 0 {
                return sheet.raw(message, "compressed");
            }
        }
        match (Encoding::of(head), Signal::of(head.path())) {
            _ if is_compressed => sheet.raw(message, "compressed"),
            (Some(Encoding::Json), _) => sheet.raw(message, "JSON"),
            (_, Some(signal)) => explain(message, signal.message(), 0, sheet),
            (_, None) => sheet.raw(message, "of an unknown path"),
        }
    });
}

fn explain(message: &[u8], of: &MessageSchema, depth: usize, sheet: &mut Sheet) {
    let mut fields = ProtobufFields::of(message);
    while let Some((found, whole)) = fields.next_whole() {
        match (of.field(found.number), found.value) {
            (Some(FieldSchema { name, of: FieldType::Message(inner), .. }), ProtobufValue::Bytes(bytes))
                if depth < MAX_DEPTH =>
            {
                let head = &whole[..whole.len() - bytes.len()];
                sheet.field(head, name, counted(bytes.len() as u64, "byte"));
                sheet.nested(|sheet| explain(bytes, inner, depth + 1, sheet));
            }
            (Some(field), value) => sheet.field(whole, field.name, words(field, value)),
            (None, _) => sheet.field(whole, "unknown field", found.number),
        }
    }
    if !fields.is_valid() {
        sheet.raw(fields.rest(), "invalid");
    }
}

/// A value in words.
fn words(field: &FieldSchema, value: ProtobufValue<'_>) -> String {
    match (field.of, value) {
        (FieldType::Text, ProtobufValue::Bytes(bytes)) => text(bytes),
        (FieldType::Id(_), ProtobufValue::Bytes(bytes)) => hex(bytes),
        (_, ProtobufValue::Bytes(bytes)) => counted(bytes.len() as u64, "byte"),
        (FieldType::Bool, ProtobufValue::Varint(value)) => (value != 0).to_string(),
        (FieldType::Int, ProtobufValue::Varint(value)) => (value as i64).to_string(),
        (FieldType::Sint, ProtobufValue::Varint(value)) => zigzag(value).to_string(),
        (_, ProtobufValue::Varint(value)) => value.to_string(),
        (FieldType::Double, ProtobufValue::Fixed(bytes)) => f64::from_bits(fixed64(bytes)).to_string(),
        (FieldType::Fixed64, ProtobufValue::Fixed(bytes)) if field.name.ends_with("UnixNano") => {
            moment(fixed64(bytes).into())
        }
        (_, ProtobufValue::Fixed(bytes)) if bytes.len() == 8 => fixed64(bytes).to_string(),
        (_, ProtobufValue::Fixed(bytes)) => fixed32(bytes).to_string(),
    }
}
