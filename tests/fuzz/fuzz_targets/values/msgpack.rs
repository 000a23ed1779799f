//! MessagePack, compared with rmpv: the same values, ending at the same byte. An incomplete message is waited for, and its
//! result does not differ from that of the complete message.

use rmpv::Value as Foreign;
use tributary::codec::msgpack::{MsgpackValue, Reader};
use tributary::codec::reader::DecodeErrorKind;

pub fn property(input: &[u8]) {
    let Some((&cut, input)) = input.split_first() else { return };
    let mut reader = Reader::new(input, 0);
    let skipped = reader.skip("value");
    let mut rest = input;
    let foreign = rmpv::decode::read_value(&mut rest);
    match (&skipped, foreign) {
        (Ok(()), Ok(foreign)) => {
            assert_eq!(reader.rest().len(), rest.len(), "a value's end");
            compare(&mut Reader::new(input, 0), &foreign);
        }
        (Ok(()), Err(error)) => panic!("a value that rmpv does not read: {error}"),
        (Err(error), Ok(foreign)) => {
            // Rmpv reads the reserved byte as nil, and allows a greater depth.
            let is_stricter = match error.kind {
                DecodeErrorKind::Invalid { found, .. } => found == 0xC1,
                DecodeErrorKind::TooLarge { .. } => true,
                _ => false,
            };
            assert!(is_stricter, "{error}: {foreign:?}");
        }
        (Err(_), Err(_)) => assert_eq!(reader.offset(), 0, "it stays where it was"),
    }

    // The same bytes, incomplete.
    let here = usize::from(cut) % (input.len() + 1);
    let mut arriving = Reader::new(&input[..here], (input.len() - here) as u64);
    match arriving.skip("value") {
        Ok(()) => assert_eq!((Ok(()), reader.offset()), (skipped, arriving.offset())),
        Err(error) if arriving.may_wait(&error) => {}
        Err(error) => assert_eq!(Err(error), skipped),
    }
}

/// Reads a value with its content.
fn compare(reader: &mut Reader<'_>, foreign: &Foreign) {
    let start = *reader;
    let (mut as_number, mut as_text) = (start, start);
    let value = reader.next("value").unwrap_or_else(|error| panic!("{error}: {foreign:?}"));
    if let Some(number) = as_number.unsigned() {
        assert_eq!((MsgpackValue::Unsigned(number), reader.offset()), (value, as_number.offset()));
    }
    if let Some(text) = as_text.short_text() {
        assert_eq!((MsgpackValue::Text(text), reader.offset()), (value, as_text.offset()));
    }
    match (value, foreign) {
        (MsgpackValue::Nil, Foreign::Nil) => {}
        (MsgpackValue::Bool(one), Foreign::Boolean(other)) => assert_eq!(one, *other),
        (MsgpackValue::Unsigned(one), Foreign::Integer(other)) => assert_eq!(Some(one), other.as_u64()),
        (MsgpackValue::Negative(one), Foreign::Integer(other)) => assert_eq!(Some(one), other.as_i64()),
        (MsgpackValue::Float(one), Foreign::F32(other)) => assert!(same(one, f64::from(*other))),
        (MsgpackValue::Float(one), Foreign::F64(other)) => assert!(same(one, *other)),
        (MsgpackValue::Text(one), Foreign::String(other)) => assert_eq!(one, other.as_bytes()),
        (MsgpackValue::Binary(one), Foreign::Binary(other)) => assert_eq!(one, other),
        (MsgpackValue::Extension(kind, one), Foreign::Ext(other_kind, other)) => {
            assert_eq!((kind as i8, one), (*other_kind, &other[..]));
        }
        (MsgpackValue::Array(count), Foreign::Array(items)) => {
            assert_eq!(count as usize, items.len());
            items.iter().for_each(|item| compare(reader, item));
        }
        (MsgpackValue::Map(count), Foreign::Map(pairs)) => {
            assert_eq!(count as usize, pairs.len());
            for (key, value) in pairs {
                compare(reader, key);
                compare(reader, value);
            }
        }
        _ => panic!("{value:?}, not {foreign:?}"),
    }
}

fn same(one: f64, other: f64) -> bool {
    one == other || one.is_nan() && other.is_nan()
}
