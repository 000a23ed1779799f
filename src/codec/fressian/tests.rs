//! Values, caches, structs and text, whole and damaged.

use super::*;

fn items(bytes: &[u8]) -> Result<Vec<FressianItem<'_>>, FressianError> {
    let (mut reader, mut known) = (FressianReader::at(bytes, 0), Definitions::default());
    let mut items = Vec::new();
    while !reader.is_at_end() {
        items.push(reader.item(&mut known)?);
    }
    Ok(items)
}

fn integer(bytes: &[u8]) -> i64 {
    match items(bytes).unwrap().as_slice() {
        [FressianItem::Integer(number)] => *number,
        other => panic!("{other:?}"),
    }
}

fn fault(bytes: &[u8]) -> (usize, FressianErrorKind) {
    let error = items(bytes).unwrap_err();
    (error.offset, error.fault)
}

#[test]
fn integers_have_eight_forms() {
    for (bytes, number) in [
        (&b"\x00"[..], 0),
        (b"\x3f", 63),
        (b"\xff", -1),
        (b"\x40\x00", -4096),
        (b"\x4f\xfe", -2),
        (b"\x50\x40", 64),
        (b"\x5f\xff", 4095),
        (b"\x60\x00\x00", -(8 << 16)),
        (b"\x6f\xff\xff", (8 << 16) - 1),
        (b"\x70\x00\x00\x00", -(2 << 24)),
        (b"\x73\xff\xff\xff", (2 << 24) - 1),
        (b"\x77\xff\xff\xff\xff", (2 << 32) - 1),
        (b"\x78\x00\x00\x00\x00\x00", -(2 << 40)),
        (b"\x7f\xff\xff\xff\xff\xff\xff", (2 << 48) - 1),
        (b"\xf8\x80\0\0\0\0\0\0\0", i64::MIN),
    ] {
        assert_eq!(integer(bytes), number, "{bytes:02x?}");
        for cut in 1..bytes.len() {
            assert_eq!(fault(&bytes[..cut]), (0, FressianErrorKind::End));
        }
    }
}

#[test]
fn texts_and_bytes_may_have_chunks() {
    let bytes = b"\xe2\x02ab\xe2\x01c\xdbd\xd8\x01a\xd1b\xda\xe3\x02xy\xd9\x01z";
    let read = items(bytes).unwrap();
    let [FressianItem::TextChunks(text), FressianItem::BytesChunks(bytes), rest @ ..] = read.as_slice() else {
        panic!("{read:?}")
    };
    assert_eq!((joined(text), joined(bytes)), (b"abcd".to_vec(), b"ab".to_vec()));
    assert_eq!(rest, [FressianItem::Text(b""), FressianItem::Text(b"xy"), FressianItem::Bytes(b"z")]);
    assert_eq!(fault(b"\xe2\x01a\xd1b"), (0, FressianErrorKind::Expected("a further chunk")));
    assert_eq!(fault(b"\xe2\x01a"), (0, FressianErrorKind::End));
}

#[test]
fn a_type_of_structs_is_announced_once_also_if_its_bytes_are_read_again() {
    let bytes = b"\xef\xdba\x01\x07\xa0\x08\xef\xdbb\x00\xa1\xf0\x01";
    let (mut reader, mut known) = (FressianReader::at(bytes, 0), Definitions::default());
    let again = reader;
    let mut tags = |mut reader: FressianReader<'static>| {
        let mut tags = Vec::new();
        while !reader.is_at_end() {
            if let FressianItem::Struct(tag, values) = reader.item(&mut known).unwrap() {
                tags.push((tag, values));
            }
        }
        tags
    };
    let expected = [(&b"a"[..], 1), (b"a", 1), (b"b", 0), (b"b", 0), (b"b", 0)];
    assert_eq!(tags(reader), expected);
    assert_eq!(tags(again), expected);
    reader = FressianReader::at(b"\xa2", 0);
    assert_eq!(reader.item(&mut known).unwrap_err().fault, FressianErrorKind::Type(2));
    known.reset();
    reader = FressianReader::at(b"\xa0", 0);
    assert_eq!(reader.item(&mut known).unwrap_err().fault, FressianErrorKind::Type(0));
}

#[test]
fn a_cached_value_is_a_single_item() {
    assert_eq!(
        items(b"\xcd\xdba\xcd\x07\x80\xcc\x01").unwrap(),
        [FressianItem::Text(b"a"), FressianItem::Integer(7), FressianItem::Text(b"a"), FressianItem::Integer(7)]
    );
    assert_eq!(fault(b"\x80"), (0, FressianErrorKind::Cached(0)));
    assert_eq!(fault(b"\xcd\xe5\x01\x80"), (3, FressianErrorKind::Cached(0)), "a container");
    assert_eq!(fault(b"\xcd\xdba\xcd\x80\x81"), (5, FressianErrorKind::Cached(1)), "a reference");
}

#[test]
fn counts_are_checked_against_the_bytes_that_are_left() {
    for bytes in [&b"\xec\x77\xff\xff\xff\xff"[..], b"\xe3\x05ab", b"\xb0\x50\xff\x01", b"\xe6\x01", b"\xe5"] {
        assert_eq!(fault(bytes).1, FressianErrorKind::End, "{bytes:02x?}");
    }
    assert_eq!(fault(b"\xec\xff"), (0, FressianErrorKind::Expected("a count")));
    assert_eq!(fault(b"\xcb"), (0, FressianErrorKind::Code(0xCB)));
}

#[test]
fn values_are_passed_over_by_their_structure() {
    // A map of a list up to an end, a struct of one value, a set; then an integer.
    let value = b"\xc0\xe8\xdba\xee\x01\xe5\x02\xfd\xdbb\xef\xdbt\x01\xc1\xe5\x03";
    let bytes = [&value[..], b"\x07"].concat();
    let (mut reader, mut known) = (FressianReader::at(&bytes, 0), Definitions::default());
    let mut other = reader;
    reader.skip(8, &mut known).unwrap();
    assert_eq!(reader.offset(), value.len());
    let mut structs = 0;
    other
        .skip_any(&mut Definitions::default(), |item| {
            structs += usize::from(matches!(item, FressianItem::Struct(..)));
        })
        .unwrap();
    assert_eq!((other.offset(), structs), (value.len(), 1));
    let mut shallow = FressianReader::at(&bytes, 0);
    let error = shallow.skip(2, &mut Definitions::default()).unwrap_err();
    assert_eq!(error.fault, FressianErrorKind::TooDeep(2));
    for cut in 0..value.len() {
        let cut = FressianReader::at(&bytes[..cut], 0);
        let mut known = Definitions::default();
        assert!({ cut }.skip(8, &mut known).is_err());
        assert!({ cut }.skip_any(&mut Definitions::default(), |_| {}).is_err());
    }
}

#[test]
fn depth_takes_no_memory() {
    let deep = [vec![0xE5; 1 << 20], vec![0x01]].concat();
    let mut reader = FressianReader::at(&deep, 0);
    reader.skip_any(&mut Definitions::default(), |_| {}).unwrap();
    assert!(reader.is_at_end());
    let open = vec![0xEE; 1 << 20];
    let error = FressianReader::at(&open, 0).skip_any(&mut Definitions::default(), |_| {}).unwrap_err();
    assert!(error.is_over_limit() && error.offset == MAX_OPEN_LISTS);
    for bytes in [&b"\xfd"[..], b"\xe5\xfd", b"\xe5\xfe"] {
        let (mut reader, mut known) = (FressianReader::at(bytes, 0), Definitions::default());
        assert_eq!(reader.skip(8, &mut known).unwrap_err().fault, FressianErrorKind::Misplaced);
    }
}
