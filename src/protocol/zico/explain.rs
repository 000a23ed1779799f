//! Explains the bytes of a request: compression, definitions, nested records (section 2).

mod items;
mod packets;

use tributary_codec::base64;
use tributary_explain::words::counted;
use tributary_explain::{DecoderError, Sheet, http, value};
use tributary_protocol::RequestHead;

use super::forms::{self, Packing, Submission};
use super::options::Options;
use super::route::Route;
use super::wire::{self, Carries, ZicoDialect};

pub use packets::PacketsExplainer;

/// Writes the body of a request onto the sheet, with the decoder's faults. A body with keys is shown as plain bytes: the
/// sheet must be shown only to readers with access to the keys.
///
/// Decompressed data follow their compressed bytes, with offsets of their own and their faults. Ids of strings and methods
/// stay ids, because other requests define them.
pub fn body(head: &RequestHead, body: &[u8], faults: Vec<DecoderError>, sheet: &mut Sheet) {
    match Route::read(head.path()) {
        _ if body.is_empty() => write_faults(&faults, sheet),
        Some(Route::Submit(carries)) => submitted(head, carries, body, faults, sheet),
        Some(Route::Form) => form(body, faults, sheet),
        Some(Route::Packet) => sheet.inner(faults, |sheet| packets::write(body, sheet)),
        Some(Route::Register | Route::Session) => {
            sheet.inner(faults, |sheet| sheet.secret(body, "keys", "hidden"));
        }
        None => sheet.inner(faults, |sheet| sheet.raw(body, "not a path of agents")),
    }
}

fn write_faults(faults: &[DecoderError], sheet: &mut Sheet) {
    faults.iter().for_each(|fault| sheet.fault(fault));
}

/// Rule 5: CBOR, or base64 of it.
fn submitted(head: &RequestHead, carries: Carries, body: &[u8], faults: Vec<DecoderError>, sheet: &mut Sheet) {
    let is_gen2 = head.header("x-zorka-session-id").is_some();
    let assumed = if is_gen2 { ZicoDialect::Gen2 } else { ZicoDialect::Gen1 };
    let write = |bytes: &[u8], sheet: &mut Sheet| {
        items::write(bytes, carries, wire::detect(bytes, carries).unwrap_or(assumed), sheet);
    };
    if body.first().is_some_and(|first| *first >= 0x80) {
        return sheet.inner(faults, |sheet| write(body, sheet));
    }
    match base64::decode(body) {
        Ok(bytes) => {
            sheet.field(body, "base64", counted(bytes.len() as u64, "byte"));
            sheet.inner(faults, |sheet| write(&bytes, sheet));
        }
        Err(error) => sheet.inner(faults, |sheet| sheet.raw(body, &format!("not CBOR: {error}"))),
    }
}

/// Section 1.4.
fn form(body: &[u8], faults: Vec<DecoderError>, sheet: &mut Sheet) {
    let submission = match forms::submission(body) {
        Ok(submission) => submission,
        Err(fault) => {
            let has_key = body.split(|byte| *byte == b'&').any(|field| is_secret(field_name(field)));
            return sheet.inner(faults, |sheet| match has_key {
                true => sheet.secret(body, &fault.to_string(), "hidden"),
                false => sheet.raw(body, &fault.to_string()),
            });
        }
    };
    for field in body.split_inclusive(|byte| *byte == b'&') {
        match field_name(field) {
            b"host" => sheet.field(field, "host", value::text(submission.host.as_bytes())),
            b"data" | b"zdata" | b"ldata" => {
                let bytes = counted(submission.packed.len() as u64, "byte");
                sheet.field(field, "data", format_args!("{bytes} in base64"));
            }
            name if is_secret(name) => sheet.secret(field, "ignored", "hidden"),
            _ => sheet.raw(field, "ignored"),
        }
    }
    match submission.packing {
        Packing::Plain => sheet.inner(faults, |sheet| of_form(&submission.packed, sheet)),
        _ => sheet.inner([], |sheet| packed(submission, faults, sheet)),
    }
}

/// The name of a field of a form, as sent.
fn field_name(field: &[u8]) -> &[u8] {
    field.split(|byte| b"=&".contains(byte)).next().unwrap_or_default()
}

/// Whether a field of this name can be a key.
fn is_secret(name: &[u8]) -> bool {
    http::is_secret_parameter(&String::from_utf8_lossy(name))
}

/// Compressed data, after base64 decoding.
fn packed(submission: Submission, faults: Vec<DecoderError>, sheet: &mut Sheet) {
    let packed = submission.packed.clone();
    let limit = usize::try_from(Options::default().max_inflated_bytes).unwrap_or(usize::MAX);
    let mut unpacking = submission.unpack(limit);
    let fault = loop {
        match unpacking.step() {
            Ok(false) => {}
            Ok(true) => break None,
            Err(fault) => break Some(fault),
        }
    };
    let layout = unpacking.layout();
    if let Some(fault) = fault {
        sheet.raw(&packed, &format!("{layout}: {fault}"));
        return write_faults(&faults, sheet);
    }
    let (stream, trailing) = packed.split_at(packed.len() - unpacking.trailing().min(packed.len()));
    let bytes = unpacking.into_output();
    sheet.field(stream, layout, format_args!("becomes {}", counted(bytes.len() as u64, "byte")));
    sheet.inner(faults, |sheet| of_form(&bytes, sheet));
    if !trailing.is_empty() {
        sheet.raw(trailing, "after the end of the compressed data");
    }
}

/// The data of a form; their first bytes say what they contain.
fn of_form(bytes: &[u8], sheet: &mut Sheet) {
    let carries = wire::carries(bytes);
    items::write(bytes, carries, wire::detect(bytes, carries).unwrap_or(ZicoDialect::Doc), sheet);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(path: &str, body: &[u8]) -> Vec<String> {
        let head = RequestHead { method: "POST".into(), target: path.into(), headers: Vec::new() };
        let mut sheet = Sheet::new(0, []);
        super::body(&head, body, vec![DecoderError { offset: 1, text: "malformed".to_owned() }], &mut sheet);
        let rows = sheet.take();
        rows.lines()
            .map(|line| line.trim_start_matches("| ").split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    const METHOD: [&str; 6] = [
        "00000000 c2 84 method",
        "00000001 !! malformed",
        "00000002 01 id: 1",
        "00000003 00 class: none",
        "00000004 00 method: none",
        "00000005 00 signature: none",
    ];

    #[test]
    fn a_body_is_cbor_or_base64_of_it() {
        let shown = rows("/agent/submit/agd", b"\xc2\x84\x01\0\0\0");
        assert_eq!((shown[0].as_str(), &shown[1..]), ("definitions, dialect gen1", &METHOD.map(str::to_owned)[..]));
        let shown = rows("/agent/submit/agd/", b"woQBAAAA");
        assert_eq!(shown[0], "00000000 77 6f 51 42 41 41 41 41 base64: 6 bytes");
        assert_eq!(shown[2..], METHOD);
        let shown = rows("/agent/submit/agd", b"w!");
        assert_eq!(shown[0], "00000000 77 21 ?: not CBOR: base64, at 1: a character that base64 does not have");
        assert_eq!(shown[1], "00000001 !! malformed");
    }

    #[test]
    fn every_encoding_of_a_form_is_shown() {
        let shown = rows("/submit/agent", b"host=a&x&data=woQBAAAA");
        assert_eq!(
            shown[..4],
            [
                "00000000 68 6f 73 74 3d 61 26 host: \"a\"",
                "00000007 78 26 ?: ignored",
                "00000009 64 61 74 61 3d 77 6f 51 42 41 41 41 41 data: 6 bytes in base64",
                "definitions, dialect doc",
            ]
        );
        // One stored block of raw deflate (RFC 1951) with the same in doc, and a byte after it.
        let deflate = b"\x01\x06\0\xf9\xff\xce\x84\x01\0\0\0\x2a";
        assert_eq!(base64::decode(b"AQYA+f/OhAEAAAAq").unwrap(), deflate);
        let shown = rows("/submit/agent", b"host=a&zdata=AQYA%2Bf%2FOhAEAAAAq");
        assert_eq!(shown[1], "00000007 7a 64 61 74 61 3d 41 51 59 41 25 32 42 66 25 32 data: 12 bytes in base64");
        assert_eq!(shown[3], "00000000 01 06 00 f9 ff ce 84 01 00 00 00 zdata:deflate: becomes 6 bytes");
        assert_eq!(shown[4..7], ["definitions, dialect doc", "00000000 ce 84 method", "00000001 !! malformed"]);
        assert_eq!(shown[11], "0000000b 2a ?: after the end of the compressed data");
        let shown = rows("/submit/agent", b"host=a");
        assert_eq!(shown[0], "00000000 68 6f 73 74 3d 61 ?: at 6: expected exactly one of `data`, `zdata` and `ldata`");
    }

    #[test]
    fn keys_are_not_shown() {
        let shown = rows("/agent/session", b"{\"authkey\":\"abc\"}");
        assert!(shown[0].ends_with("keys: hidden") && !shown.concat().contains("authkey"), "{shown:?}");
    }
}
