//! The items of a body, in each of the three dialects (sections 2.2 to 2.5).

mod fields;

use tributary_codec::cbor::{CborError, CborErrorKind, Reader};
use tributary_explain::Sheet;
use tributary_explain::cbor::{CborStyle, field, head, inside};
use tributary_explain::depth::set_in;
use tributary_explain::words::duration;

use super::super::wire::{Carries, MAX_VALUE_DEPTH, ZicoDialect};
use fields::{
    attributes, clock, exception, flags, integer, kind, length_of, name, number, order_name, prolog, record, symbol,
    tag, tagged, tagged_number, text, ticks, word,
};

const BREAK: u8 = 0xFF;
/// The tag of an integer that stands for a text (doc and gen1).
const REFERENCE: u64 = 6;
/// Nanoseconds of a tick, and the bits of a word that are ticks (doc and gen1).
const TICK_NANOS: i128 = 65_536;
const TIME_BITS: u32 = 40;

/// Writes a body. What follows an item that the dialect does not have is written as raw bytes.
pub(super) fn write(bytes: &[u8], carries: Carries, dialect: ZicoDialect, sheet: &mut Sheet) {
    let what = match carries {
        Carries::Definitions => "definitions",
        Carries::Trace => "trace",
    };
    sheet.title(format_args!("{what}, dialect {}", dialect.as_str()));
    let mut items = Items { reader: Reader::new(bytes), dialect, open: Vec::new() };
    while !items.reader.is_at_end() {
        let depth = items.open.len();
        let written = set_in(sheet, depth, |sheet| match carries {
            Carries::Definitions => items.definition(sheet),
            Carries::Trace => items.entry(sheet),
        });
        if let Some(Err(error)) = written {
            return sheet.raw(items.reader.rest(), &error.to_string());
        }
    }
}

struct Items<'a> {
    reader: Reader<'a>,
    dialect: ZicoDialect,
    /// Open records: whether their words are little-endian (doc).
    open: Vec<bool>,
}

type Written = Result<(), CborError>;

impl Items<'_> {
    fn definition(&mut self, sheet: &mut Sheet) -> Written {
        let values = self.values();
        let reader = &mut self.reader;
        match (self.dialect, tag(reader)?) {
            (ZicoDialect::Doc, 0x0D) | (ZicoDialect::Gen1 | ZicoDialect::Gen2, 1) => {
                let kinds = u64::from(self.dialect != ZicoDialect::Gen2);
                tagged(reader, sheet, "string", 2 + kinds..=2 + kinds)?;
                inside(sheet, |sheet| {
                    integer(reader, sheet, "id")?;
                    text(reader, sheet, "text")?;
                    if kinds > 0 { number(reader, sheet, "type", kind) } else { Ok(()) }
                })
            }
            (ZicoDialect::Doc, 0x0E) | (ZicoDialect::Gen1 | ZicoDialect::Gen2, 2) => {
                tagged(reader, sheet, "method", 4..=4)?;
                inside(sheet, |sheet| {
                    integer(reader, sheet, "id")?;
                    ["class", "method", "signature"].iter().try_for_each(|name| symbol(reader, sheet, name))
                })
            }
            (ZicoDialect::Doc, 0x0F) | (ZicoDialect::Gen1, 3) => {
                tagged(reader, sheet, "agent attribute", 2..=2)?;
                inside(sheet, |sheet| {
                    name(reader, sheet, "key", false)?;
                    values.value(reader, sheet, "value", 0)
                })
            }
            _ => Err(self.misplaced()),
        }
    }

    fn entry(&mut self, sheet: &mut Sheet) -> Written {
        if self.reader.rest().first() == Some(&BREAK) {
            let closes = self.dialect != ZicoDialect::Gen2 && !self.open.is_empty();
            head(&mut self.reader, sheet, "end of record", if closes { "" } else { "of no record" })?;
            if closes {
                self.open.pop();
            }
            return Ok(());
        }
        match self.dialect {
            ZicoDialect::Gen2 => self.gen2_entry(sheet),
            _ => self.gen1_entry(sheet),
        }
    }

    fn gen1_entry(&mut self, sheet: &mut Sheet) -> Written {
        let values = self.values();
        let reader = &mut self.reader;
        let tag = tag(reader)?;
        match (self.dialect, tag) {
            (ZicoDialect::Doc, 6 | 7 | 0x0A | 0x0B) => {
                let is_little = matches!(tag, 7 | 0x0B);
                record(reader, sheet, order_name(is_little))?;
                self.open.push(is_little);
                // A record without a valid word is not a record: nothing after it is read.
                inside(sheet, |sheet| {
                    field(reader, sheet, "prolog", |reader| Ok(prolog(word(reader, is_little, 8..=8)?)))
                })
            }
            (ZicoDialect::Gen1, 8) => {
                record(reader, sheet, "")?;
                self.open.push(false);
                Ok(())
            }
            (ZicoDialect::Gen1, 0x0A | 0x0B) => field(reader, sheet, "prolog", |reader| {
                reader.item()?;
                Ok(prolog(word(reader, tag == 0x0B, 8..=8)?))
            }),
            (ZicoDialect::Doc, 0x0D) | (ZicoDialect::Gen1, 0x0C | 0x0D) => {
                let is_little = match self.dialect {
                    ZicoDialect::Doc => self.open.last().copied().unwrap_or(true),
                    _ => tag == 0x0D,
                };
                field(reader, sheet, "epilog", |reader| {
                    reader.item()?;
                    let (word, long) = word(reader, is_little, 8..=16)?;
                    let calls = long.unwrap_or(word >> TIME_BITS);
                    Ok(format!("stop {}, calls {calls}", ticks(word)))
                })?;
                self.end_of_record(sheet)
            }
            (_, 0x0F) => tagged_number(reader, sheet, "flags", |flags| {
                format!("{flags}{}", if flags & 8 != 0 { " (error)" } else { "" })
            }),
            (_, 0x21) => {
                tagged(reader, sheet, "begin of trace", 2..=2)?;
                inside(sheet, |sheet| {
                    number(reader, sheet, "clock", clock)?;
                    symbol(reader, sheet, "type")
                })
            }
            (_, 9 | 0x0E) => attributes(reader, sheet, values),
            (_, 0x26) => {
                tagged(reader, sheet, "attributes of an enclosing trace", 2..=2)?;
                inside(sheet, |sheet| {
                    symbol(reader, sheet, "type")?;
                    values.map(reader, sheet, "attributes", 0)
                })
            }
            (_, 0x22) => exception(reader, sheet, values, 5),
            (_, 0x23) => tagged_number(reader, sheet, "exception", |id| format!("{id}, sent before")),
            _ => Err(self.misplaced()),
        }
    }

    fn gen2_entry(&mut self, sheet: &mut Sheet) -> Written {
        let values = self.values();
        let reader = &mut self.reader;
        match tag(reader)? {
            3 => {
                record(reader, sheet, "")?;
                self.open.push(false);
                inside(sheet, |sheet| {
                    number(reader, sheet, "start", |nanos| duration(i128::from(nanos as i64)))?;
                    integer(reader, sheet, "method")
                })
            }
            4 => {
                let length = tagged(reader, sheet, "epilog", 2..=3)?;
                inside(sheet, |sheet| {
                    number(reader, sheet, "stop", |nanos| duration(i128::from(nanos as i64)))?;
                    integer(reader, sheet, "calls")?;
                    if length == 3 { number(reader, sheet, "flags", flags) } else { Ok(()) }
                })?;
                self.end_of_record(sheet)
            }
            5 => {
                let length = tagged(reader, sheet, "begin of trace", 2..=4)?;
                inside(sheet, |sheet| {
                    number(reader, sheet, "clock", clock)?;
                    symbol(reader, sheet, "type")?;
                    if length > 2 {
                        number(reader, sheet, "span id", |id| format!("{id:016x}"))?;
                    }
                    if length > 3 { number(reader, sheet, "parent span id", |id| format!("{id:016x}")) } else { Ok(()) }
                })
            }
            6 => {
                let is_upward = length_of(*reader) == Some(3);
                let what = if is_upward { "attribute of an enclosing trace" } else { "attribute" };
                tagged(reader, sheet, what, 2..=3)?;
                inside(sheet, |sheet| {
                    if is_upward {
                        symbol(reader, sheet, "type")?;
                    }
                    name(reader, sheet, "key", true)?;
                    values.value(reader, sheet, "value", 0)
                })
            }
            7 => exception(reader, sheet, values, 6),
            8 => tagged_number(reader, sheet, "exception", |id| format!("{id}, sent before")),
            _ => Err(self.misplaced()),
        }
    }

    /// The break after an epilog is part of it.
    fn end_of_record(&mut self, sheet: &mut Sheet) -> Written {
        let offset = self.reader.offset();
        match self.reader.rest() {
            [BREAK, ..] => {}
            [] => return Err(CborError { offset, fault: CborErrorKind::End }),
            _ => return Err(CborError { offset, fault: CborErrorKind::Expected("a break after the end") }),
        }
        let was_open = self.open.pop().is_some();
        head(&mut self.reader, sheet, "end of record", if was_open { "" } else { "of no record" })
    }

    fn values(&self) -> CborStyle {
        let reference = (self.dialect != ZicoDialect::Gen2).then_some(REFERENCE);
        CborStyle { reference, most_depth: MAX_VALUE_DEPTH + 1 }
    }

    fn misplaced(&self) -> CborError {
        let expected = match self.dialect {
            ZicoDialect::Doc => "an item of the dialect doc",
            ZicoDialect::Gen1 => "an item of the dialect gen1",
            ZicoDialect::Gen2 => "an item of the dialect gen2",
            ZicoDialect::Fressian => "a packet",
        };
        CborError { offset: self.reader.offset(), fault: CborErrorKind::Expected(expected) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(bytes: &[u8], carries: Carries, dialect: ZicoDialect) -> Vec<String> {
        let mut sheet = Sheet::new(0, []);
        write(bytes, carries, dialect, &mut sheet);
        assert_eq!(sheet.offset(), bytes.len() as u64);
        let rows = sheet.take();
        rows.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn definitions_are_shown_in_each_dialect() {
        assert_eq!(
            rows(b"\xc1\x83\x07\x62ab\x05\xc2\x84\x01\xc6\x07\x00\x08", Carries::Definitions, ZicoDialect::Gen1),
            [
                "00000000 c1 83 string",
                "00000002 07 id: 7",
                "00000003 62 61 62 text: \"ab\"",
                "00000006 05 type: 5 (class)",
                "00000007 c2 84 method",
                "00000009 01 id: 1",
                "0000000a c6 07 class: string 7",
                "0000000c 00 method: none",
                "0000000d 08 signature: string 8",
            ]
        );
        let gen2 = rows(b"\xc1\x82\x07\x61a", Carries::Definitions, ZicoDialect::Gen2);
        assert_eq!(gen2, ["00000000 c1 82 string", "00000002 07 id: 7", "00000003 61 61 text: \"a\""]);
        let doc = rows(b"\xcf\x82\x61k\x01\xc1", Carries::Definitions, ZicoDialect::Doc);
        assert_eq!(
            doc,
            [
                "00000000 cf 82 agent attribute",
                "00000002 61 6b key: \"k\"",
                "00000004 01 value: 1",
                "00000005 c1 ?: at 5: expected an item of the dialect doc",
            ]
        );
    }

    /// Section 2.3: both byte orders of the same word, the long form of calls, and other items.
    #[test]
    fn records_of_gen1_show_all_of_their_items() {
        let trace = [
            &b"\xc8\x9f\xcb\x48\xe8\x03\0\0\0\x01\0\0"[..],
            b"\xd8\x21\x82\x19\x03\xe8\x02",
            b"\xc9\xa1\xc6\x05\x61x",
            b"\xd8\x26\x82\0\xa0",
            b"\xcf\x08",
            b"\xc8\x9f\xca\x48\0\0\x01\0\0\0\x03\xe8\xff",
            b"\xd8\x22\x85\x01\xc6\x04\xf6\0\x81\x84\x01\x02\x03\x21",
            b"\xd8\x23\x01",
            b"\xcc\x50\0\0\0\0\0\0\x03\xe9\0\0\0\0\x01\0\0\0\xff",
        ]
        .concat();
        assert_eq!(
            rows(&trace, Carries::Trace, ZicoDialect::Gen1),
            [
                "00000000 c8 9f record",
                "00000002 cb 48 e8 03 00 00 00 01 00 00 prolog: start 65.536 ms, method 1",
                "0000000c d8 21 82 begin of trace",
                "0000000f 19 03 e8 clock: 1970-01-01T00:00:01Z",
                "00000012 02 type: string 2",
                "00000013 c9 a1 attributes: 1 pair",
                "00000015 c6 05 key: string 5",
                "00000017 61 78 value: \"x\"",
                "00000019 d8 26 82 attributes of an enclosing trace",
                "0000001c 00 type: none",
                "0000001d a0 attributes: 0 pairs",
                "0000001e cf 08 flags: 8 (error)",
                "00000020 c8 9f record",
                "00000022 ca 48 00 00 01 00 00 00 03 e8 prolog: start 65.536 ms, method 1",
                "0000002c ff end of record",
                "0000002d d8 22 85 exception",
                "00000030 01 id: 1",
                "00000031 c6 04 class: string 4",
                "00000033 f6 message: null",
                "00000034 00 cause: 0",
                "00000035 81 stack: 1 frame",
                "00000036 84 frame 0",
                "00000037 01 class: string 1",
                "00000038 02 method: string 2",
                "00000039 03 file: string 3",
                "0000003a 21 line: -2 (native)",
                "0000003b d8 23 01 exception: 1, sent before",
                "0000003e cc 50 00 00 00 00 00 00 03 e9 00 00 00 00 01 00",
                "0000004e 00 00",
                "00000050 ff end of record",
            ]
            .map(|row| if row.starts_with("0000003e") {
                format!("{row} epilog: stop 65.601536 ms, calls 16777216")
            } else {
                row.to_owned()
            })
        );
    }

    /// Section 2.4.
    #[test]
    fn records_of_gen2_are_integers() {
        let trace = b"\xc3\x9f\x19\x03\xe8\x07\xc5\x84\x01\x02\x20\x03\xc6\x83\0\x05\x61x\xc8\x04\xc4\x83\x19\x07\xd0\x01\x19\x10\x20\xff\xff";
        assert_eq!(
            rows(trace, Carries::Trace, ZicoDialect::Gen2),
            [
                "00000000 c3 9f record",
                "00000002 19 03 e8 start: 1 µs",
                "00000005 07 method: 7",
                "00000006 c5 84 begin of trace",
                "00000008 01 clock: 1970-01-01T00:00:00.001Z",
                "00000009 02 type: string 2",
                "0000000a 20 span id: ffffffffffffffff",
                "0000000b 03 parent span id: 0000000000000003",
                "0000000c c6 83 attribute of an enclosing trace",
                "0000000e 00 type: none",
                "0000000f 05 key: string 5",
                "00000010 61 78 value: \"x\"",
                "00000012 c8 04 exception: 4, sent before",
                "00000014 c4 83 epilog",
                "00000016 19 07 d0 stop: 2 µs",
                "00000019 01 calls: 1",
                "0000001a 19 10 20 flags: 0x1020 (drop, error)",
                "0000001d ff end of record",
                "0000001e ff end of record: of no record",
            ]
        );
    }

    /// Section 2.5: the words of a record, also of its epilog, are in the byte order of its tag.
    #[test]
    fn doc_records_have_a_byte_order() {
        let word = b"\xe8\x03\0\0\0\x01\0\0";
        let trace = [&b"\xcb\x9f\x48"[..], word, b"\xcd\x48", word, b"\xff\x01\x02"].concat();
        assert_eq!(
            rows(&trace, Carries::Trace, ZicoDialect::Doc),
            [
                "00000000 cb 9f record: little-endian",
                "00000002 48 e8 03 00 00 00 01 00 00 prolog: start 65.536 ms, method 1",
                "0000000b cd 48 e8 03 00 00 00 01 00 00 epilog: stop 65.536 ms, calls 1",
                "00000015 ff end of record",
                "00000016 01 02 ?: at 22: expected a tag",
            ]
        );
    }
}
