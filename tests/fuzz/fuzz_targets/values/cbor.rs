//! CBOR, compared with ciborium: every item is the same, and a value that ciborium accepts is skipped as one value that ends
//! at the same byte.

use ciborium_ll::{Decoder, Header, simple};
use tributary::codec::cbor::{CborErrorKind, CborItem, MOST_DEPTH, Reader};

pub fn property(input: &[u8]) {
    items(input);
    values(input);
}

fn items(input: &[u8]) {
    let mut reader = Reader::new(input);
    let mut decoder = Decoder::from(input);
    loop {
        let start = reader.offset();
        let mut ahead = reader;
        let item = reader.item();
        assert_eq!(ahead.take(input.get(start).copied().unwrap_or_default()), start < input.len());
        let item = match item {
            Ok(item) => item,
            Err(error) => {
                assert_eq!((reader.offset(), error.offset), (start, start), "it stays where it was");
                let is_short_simple = matches!(error.fault, CborErrorKind::Reserved(0xF8));
                assert!(is_short_simple || foreign(&mut decoder).is_none(), "{error} in what ciborium reads");
                return;
            }
        };
        let (foreign, length) =
            foreign(&mut decoder).unwrap_or_else(|| panic!("{item:?}, which ciborium does not read"));
        assert!(same(item, foreign), "{item:?}, not {foreign:?}");
        if let CborItem::Bytes(bytes) | CborItem::Text(bytes) = item {
            assert_eq!(bytes, &input[reader.offset() - length..reader.offset()]);
        }
        assert_eq!(reader.offset(), decoder.offset(), "{item:?}");
    }
}

/// The next item as ciborium reads it, after the content of a string, with the string's length.
fn foreign(decoder: &mut Decoder<&[u8]>) -> Option<(Header, usize)> {
    use ciborium_io::Read;
    let header = decoder.pull().ok()?;
    let length = match header {
        Header::Bytes(Some(length)) | Header::Text(Some(length)) => length,
        _ => 0,
    };
    let mut left = length;
    let mut buffer = [0; 256];
    while left > 0 {
        let step = left.min(buffer.len());
        decoder.read_exact(&mut buffer[..step]).ok()?;
        left -= step;
    }
    Some((header, length))
}

fn same(item: CborItem<'_>, foreign: Header) -> bool {
    let sizes = |ours: Option<u64>, theirs: Option<usize>| ours == theirs.map(|size| size as u64);
    match (item, foreign) {
        (CborItem::Unsigned(one), Header::Positive(other)) | (CborItem::Negative(one), Header::Negative(other)) => {
            one == other
        }
        (CborItem::Bytes(bytes), Header::Bytes(Some(length))) | (CborItem::Text(bytes), Header::Text(Some(length))) => {
            bytes.len() == length
        }
        (CborItem::Pieces(is_text), Header::Text(None)) => is_text,
        (CborItem::Pieces(is_text), Header::Bytes(None)) => !is_text,
        (CborItem::Array(one), Header::Array(other)) | (CborItem::Map(one), Header::Map(other)) => sizes(one, other),
        (CborItem::Tag(one), Header::Tag(other)) => one == other,
        (CborItem::Bool(value), Header::Simple(other)) => other == if value { simple::TRUE } else { simple::FALSE },
        (CborItem::Null, Header::Simple(other)) => other == simple::NULL,
        (CborItem::Undefined, Header::Simple(other)) => other == simple::UNDEFINED,
        (CborItem::Simple(one), Header::Simple(other)) => one == other,
        (CborItem::Float(one), Header::Float(other)) => one == other || one.is_nan() && other.is_nan(),
        (CborItem::Break, Header::Break) => true,
        _ => false,
    }
}

fn values(input: &[u8]) {
    let mut rest = input;
    let foreign = ciborium::from_reader::<ciborium::Value, _>(&mut rest);
    let mut reader = Reader::new(input);
    let skipped = reader.skip(MOST_DEPTH);
    match (foreign, skipped) {
        (Ok(_), Ok(())) => assert_eq!(reader.rest().len(), rest.len(), "a value's end"),
        (Ok(value), Err(error)) => {
            // Ciborium has a higher depth limit, and accepts invalid forms of simple values and strings in pieces as pieces
            // of strings.
            let is_stricter = match error.fault {
                CborErrorKind::TooDeep(_) | CborErrorKind::Reserved(0xF8) => true,
                CborErrorKind::Expected(what) => what == "a piece of the string",
                _ => false,
            };
            assert!(is_stricter, "{error}: {value:?}");
        }
        // Ciborium requires texts to be UTF-8, and accepts no simple values.
        (Err(_), Ok(())) => {}
        (Err(_), Err(_)) => assert_eq!(reader.offset(), 0, "it stays where it was"),
    }
}
