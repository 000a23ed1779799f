//! The packets of a connection, and the values of Fressian in them (sections 6.1 and 6.3).

use tributary_codec::fressian::{Definitions, Extended, FressianError, FressianItem, FressianReader, joined};
use tributary_explain::depth::set_in;
use tributary_explain::http::RequestError;
use tributary_explain::words::counted;
use tributary_explain::{Explain, Sheet, value};

use super::super::fressian::packet::{HEADER_BYTES, MAGIC, PacketHeader, code};
use super::super::fressian::structs::Tag;

/// Explains a connection.
#[derive(Debug)]
pub struct PacketsExplainer {
    /// By the number of the packet.
    faults: Vec<RequestError>,
    /// The packets that were explained.
    packets: u64,
}

impl PacketsExplainer {
    /// For a connection with these faults of the decoder.
    pub fn new(faults: Vec<RequestError>) -> Self {
        PacketsExplainer { faults, packets: 0 }
    }

    fn packet(&mut self, packet: &[u8], sheet: &mut Sheet) {
        self.packets += 1;
        let number = self.packets;
        let start = sheet.offset();
        sheet.title(format_args!("packet {number}"));
        let own = self.faults.extract_if(.., |fault| fault.request == Some(number)).map(|fault| fault.fault);
        sheet.inner(own.collect::<Vec<_>>(), |sheet| write(packet, sheet));
        sheet.skip_to(start + packet.len() as u64);
    }
}

impl Explain for PacketsExplainer {
    fn explain(&mut self, input: &[u8], sheet: &mut Sheet) -> usize {
        let mut at = 0;
        while let Some(length) = length_of(&input[at..]) {
            self.packet(&input[at..at + length], sheet);
            at += length;
        }
        at
    }

    fn finish(&mut self, rest: &[u8], sheet: &mut Sheet) {
        if !rest.is_empty() {
            self.packet(rest, sheet);
        }
        // Of bytes that are no packet.
        for fault in self.faults.drain(..) {
            sheet.fault(&fault.fault);
        }
    }
}

/// The length of the whole packet at the front.
fn length_of(input: &[u8]) -> Option<usize> {
    let length = usize::try_from(PacketHeader::read(input)?.length).ok()?;
    Some(HEADER_BYTES + length).filter(|length| *length <= input.len())
}

/// Writes a packet, or what there is of it.
pub(super) fn write(packet: &[u8], sheet: &mut Sheet) {
    let Some(header) = PacketHeader::read(packet) else {
        return sheet.raw(packet, "not a whole header of a packet");
    };
    let (front, content) = packet.split_at(HEADER_BYTES);
    sheet.field(&front[..MAGIC.len()], "magic", "");
    let kind = match header.kind {
        code::DATA => "data",
        code::PING => "ping",
        code::HELLO => "hello",
        _ => "unknown",
    };
    sheet.field(&front[4..6], "type", kind);
    sheet.field(&front[6..10], "content", counted(u64::from(header.length.unsigned_abs()), "byte"));
    let checksum = if header.is_intact(content) { "right" } else { "wrong" };
    sheet.field(&front[10..], "CRC-32", checksum);
    match header.kind {
        _ if content.is_empty() => {}
        code::DATA => values(content, sheet),
        code::HELLO => sheet.secret(content, "host and pass phrase", "hidden"),
        _ => sheet.raw(content, "of an unknown type"),
    }
}

/// Writes values, indented by the containers that are open.
fn values(content: &[u8], sheet: &mut Sheet) {
    let (mut reader, mut known) = (FressianReader::at(content, 0), Definitions::default());
    // The values that are left of each open container; `None`: up to an end.
    let mut open: Vec<Option<u64>> = Vec::new();
    while !reader.is_at_end() {
        while open.last() == Some(&Some(0)) {
            open.pop();
        }
        let before = reader;
        let item = match reader.item(&mut known) {
            Ok(item) => item,
            Err(error) => return rest(content, &before, &error, sheet),
        };
        if let Some(Some(left)) = open.last_mut() {
            *left -= 1;
        }
        let depth = open.len();
        match &item {
            FressianItem::End => {
                open.pop();
            }
            FressianItem::List(values) => open.push(*values),
            // A metric has more values than its type declares: they follow as values of their own.
            FressianItem::Array(_, values) | FressianItem::Struct(_, values) => open.push(Some(*values)),
            FressianItem::Extended(kind) => open.push(Some(kind.values())),
            _ => {}
        }
        let bytes = &content[before.offset()..reader.offset()];
        let (name, shown) = described(&item);
        set_in(sheet, depth, |sheet| sheet.field(bytes, name, shown));
    }
}

fn rest(content: &[u8], at: &FressianReader<'_>, error: &FressianError, sheet: &mut Sheet) {
    sheet.raw(&content[at.offset()..], &error.to_string());
}

/// What an item is, and its value.
fn described(item: &FressianItem<'_>) -> (&'static str, String) {
    let values = |count: &u64| counted(*count, "value").to_string();
    match item {
        FressianItem::Null => ("null", String::new()),
        FressianItem::Bool(truth) => ("boolean", truth.to_string()),
        FressianItem::Integer(number) => ("integer", number.to_string()),
        FressianItem::Float(number) => ("float", number.to_string()),
        FressianItem::Double(number) => ("double", number.to_string()),
        FressianItem::Text(text) => ("text", value::java_text(text)),
        FressianItem::TextChunks(chunks) => ("text in chunks", value::java_text(&joined(chunks))),
        FressianItem::Bytes(bytes) => ("bytes", counted(bytes.len() as u64, "byte").to_string()),
        FressianItem::BytesChunks(chunks) => {
            ("bytes in chunks", counted(joined(chunks).len() as u64, "byte").to_string())
        }
        FressianItem::List(Some(count)) => ("list", values(count)),
        FressianItem::List(None) => ("list", "up to an end".to_owned()),
        FressianItem::Array(kind, count) => ("array", format!("{kind:?}, {}", values(count)).to_lowercase()),
        FressianItem::Struct(tag, count) => (of_struct(tag), values(count)),
        FressianItem::Extended(kind) => (of_extended(*kind), String::new()),
        FressianItem::End => ("end of list", String::new()),
        FressianItem::Reset => ("reset of the caches", String::new()),
        FressianItem::Footer => ("footer", String::new()),
    }
}

fn of_struct(tag: &[u8]) -> &'static str {
    match Tag::of(tag) {
        Tag::Hello => "hello",
        Tag::Symbol => "symbol",
        Tag::Record => "record",
        Tag::Marker => "marker",
        Tag::Exception => "exception",
        Tag::Frame => "stack frame",
        Tag::Tagged => "tagged value",
        Tag::Perf => "perf record",
        Tag::Sample => "perf sample",
        Tag::Metric => "metric",
        Tag::Template => "metric template",
        Tag::Unknown => "unknown struct",
    }
}

fn of_extended(kind: Extended) -> &'static str {
    match kind {
        Extended::Map => "map",
        Extended::Set => "set",
        Extended::Instant => "instant",
        Extended::Uuid => "uuid",
        Extended::Uri => "URI",
        Extended::Regex => "pattern",
        Extended::BigInteger => "big integer",
        Extended::BigDecimal => "big decimal",
        Extended::Symbol => "symbol of Clojure",
        Extended::Keyword => "keyword",
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::fressian::packet::packet;
    use super::*;

    fn rows(connection: &[u8], step: usize) -> Vec<String> {
        let (mut explainer, mut sheet) = (PacketsExplainer::new(Vec::new()), Sheet::new(0, []).without_secrets());
        let mut at = 0;
        for end in (step..connection.len()).step_by(step).chain([connection.len()]) {
            at += explainer.explain(&connection[at..end], &mut sheet);
        }
        explainer.finish(&connection[at..], &mut sheet);
        sheet.end();
        assert_eq!(sheet.offset(), connection.len() as u64);
        sheet.take().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn packets_are_explained_however_they_are_cut_and_hellos_are_hidden() {
        let hello = packet(code::HELLO, b"\xe3\x06secret");
        let data = packet(code::DATA, b"\xef\xe3\x1dcom.jitlogic.zorka.Symbol_v1x\x02\x01\xdba\xf7");
        let all = [hello, data, b"\x21\xC0".to_vec()].concat();
        let whole = rows(&all, all.len());
        assert_eq!(whole, rows(&all, 1));
        let text = whole.join("\n");
        assert!(!text.contains("secret") && !text.contains("73 65 63"), "{text}");
        for row in ["packet 2", "CRC-32: right", "unknown struct: 2 values", "text: \"a\"", "null"] {
            assert!(text.contains(row), "{row} is missing in {text}");
        }
        assert!(text.ends_with("?: not a whole header of a packet"), "{text}");
    }
}
