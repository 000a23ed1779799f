//! Explains the bytes of an upload: the compressed body, the bundle by its type, each event with its name.

use tributary_codec::gvariant::{Scratch, Skip, Slice, visit_type};
use tributary_codec::inflate::Gunzip;
use tributary_explain::gvariant::{self, FieldNames, stored64};
use tributary_explain::words::{duration, moment, uuid};
use tributary_explain::{DecoderError, Sheet};
use tributary_protocol::RequestHead;

use super::Options;
use super::registry;
use super::target::Encoding;
use super::wire::{BundleLayout, UploadVersion};

/// Writes the body of a request onto the sheet, with the decoder's faults.
///
/// The protocol version is the one in the request's path. Offsets count in the bundle, as in events and faults; a
/// decompressed bundle follows its compressed bytes.
pub fn body(head: &RequestHead, body: &[u8], faults: Vec<DecoderError>, sheet: &mut Sheet) {
    let version = version(head);
    match Encoding::read(head) {
        _ if body.is_empty() => faults.iter().for_each(|fault| sheet.fault(fault)),
        Encoding::Plain => sheet.inner(faults, |sheet| bundle(body, version, sheet)),
        Encoding::Unknown => sheet.inner(faults, |sheet| sheet.raw(body, "neither plain nor gzip")),
        Encoding::Gzip => match gunzip(body) {
            Ok(bytes) => {
                sheet.field(body, "gzip", format_args!("{} bytes inflate to {}", body.len(), bytes.len()));
                sheet.inner(faults, |sheet| bundle(&bytes, version, sheet));
            }
            Err(why) => sheet.inner(faults, |sheet| sheet.field(body, "gzip", why)),
        },
    }
}

/// The version in a path: its last segment that is one.
fn version(head: &RequestHead) -> UploadVersion {
    let mut segments = head.path().rsplit('/').filter(|segment| !segment.is_empty());
    segments.find_map(UploadVersion::by_name).unwrap_or(UploadVersion::V3)
}

fn gunzip(body: &[u8]) -> Result<Vec<u8>, String> {
    let limit = usize::try_from(Options::default().max_inflated_bytes).unwrap_or(usize::MAX);
    let mut gunzip = Gunzip::new(limit);
    while !gunzip.step(body).map_err(|error| error.to_string())? {}
    Ok(gunzip.into_output())
}

/// Writes a bundle. A part that is not in normal form is shown as faulty.
fn bundle(bytes: &[u8], version: UploadVersion, sheet: &mut Sheet) {
    let is_in_form = |layout: BundleLayout| {
        let most = usize::try_from(Options::default().max_payload_bytes).unwrap_or(usize::MAX);
        let mut scratch = Scratch::for_types_of(most);
        visit_type(layout.type_string(), Slice::new(bytes), 0, &mut scratch, &mut Skip).is_ok()
    };
    let shipped = version.layout();
    // The draft layout is used only if the whole body is in its normal form, and not in that of the shipped layout.
    let is_draft = shipped == BundleLayout::V3 && !is_in_form(shipped) && is_in_form(BundleLayout::V3Draft);
    let layout = if is_draft { BundleLayout::V3Draft } else { shipped };
    let part = match layout {
        BundleLayout::V0 => &V0,
        BundleLayout::V2 => &V2,
        BundleLayout::V3 => &V3,
        BundleLayout::V3Draft => &DRAFT,
    };
    let mut clocks = Clocks::default();
    gvariant::value(layout.type_string(), bytes, part, &mut |name, bytes| clocks.describe(name, bytes), sheet);
}

/// The two clocks of a bundle, from which the times of its events are computed.
#[derive(Default)]
struct Clocks {
    relative: Option<i64>,
    absolute: Option<i64>,
}

impl Clocks {
    /// The meaning of a part's bytes, where it is more than a number or text.
    fn describe(&mut self, name: &'static str, bytes: &[u8]) -> Option<String> {
        let number = || stored64(bytes) as i64;
        Some(match name {
            "relative_timestamp" => {
                let relative = number();
                // The first one is the bundle's own, before its other clock.
                let then = match (self.relative, self.absolute) {
                    (Some(own), Some(absolute)) => {
                        format!(" ({})", moment(i128::from(absolute) + i128::from(relative) - i128::from(own)))
                    }
                    _ => String::new(),
                };
                self.relative = self.relative.or(Some(relative));
                format!("{}{then}", duration(relative.into()))
            }
            "absolute_timestamp" => {
                self.absolute = Some(number());
                moment(number().into())
            }
            "timestamp" => moment(number().into()),
            "machine_id" => uuid(bytes),
            "event_id" => match registry::known(bytes) {
                Some(known) => format!("{} ({})", uuid(bytes), known.name),
                None => format!("{} (unknown)", uuid(bytes)),
            },
            "flags" => {
                let flags = number();
                let names = [(1, "dual boot"), (2, "live")].into_iter().filter(|(bit, _)| flags & bit != 0);
                let names: Vec<_> = names.map(|(_, name)| name).collect();
                format!("{flags:#04x} {}", if names.is_empty() { "none".to_owned() } else { names.join(", ") })
            }
            "period_unit" => format!("{:?}", char::from(bytes.first().copied().unwrap_or_default())),
            _ => return None,
        })
    }
}

const fn plain(name: &'static str) -> FieldNames {
    FieldNames { name, parts: &[] }
}

const fn of(name: &'static str, parts: &'static [FieldNames]) -> FieldNames {
    FieldNames { name, parts }
}

// The layouts of section 2.1, in the order of their members. The one part of an array is that of its elements.

static V0: FieldNames = of("bundle", &[RELATIVE, ABSOLUTE, MACHINE, OLD_SINGULAR, OLD_AGGREGATE, SEQUENCES]);
static V2: FieldNames =
    of("bundle", &[plain("send_number"), RELATIVE, ABSOLUTE, MACHINE, OLD_SINGULAR, OLD_AGGREGATE, SEQUENCES]);
static V3: FieldNames = of("bundle", &[RELATIVE, ABSOLUTE, plain("image"), SITE, plain("flags"), SINGULAR, AGGREGATE]);
static DRAFT: FieldNames = of(
    "bundle",
    &[
        plain("send_number"),
        plain("image"),
        SITE,
        plain("dual_boot"),
        plain("live"),
        SINGULAR,
        of(
            "aggregate_events",
            &[of("event", &[ID, OS, plain("period_unit"), plain("timestamp"), plain("count"), PAYLOAD])],
        ),
    ],
);

const RELATIVE: FieldNames = plain("relative_timestamp");
const ABSOLUTE: FieldNames = plain("absolute_timestamp");
const MACHINE: FieldNames = plain("machine_id");
const USER: FieldNames = plain("user_id");
const ID: FieldNames = plain("event_id");
const OS: FieldNames = plain("os_version");
const PAYLOAD: FieldNames = plain("payload");
const SITE: FieldNames = of("site", &[of("entry", &[plain("key"), plain("value")])]);
const SINGULAR: FieldNames = of("singular_events", &[of("event", &[ID, OS, RELATIVE, PAYLOAD])]);
const AGGREGATE: FieldNames =
    of("aggregate_events", &[of("event", &[ID, OS, plain("period"), plain("count"), PAYLOAD])]);
const OLD_SINGULAR: FieldNames = of("singular_events", &[of("event", &[USER, ID, RELATIVE, PAYLOAD])]);
/// The count comes first (section 2.1).
const OLD_AGGREGATE: FieldNames =
    of("aggregate_events", &[of("event", &[USER, ID, plain("count"), RELATIVE, PAYLOAD])]);
const SEQUENCES: FieldNames =
    of("event_sequences", &[of("sequence", &[USER, ID, of("items", &[of("item", &[RELATIVE, PAYLOAD])])])]);

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(path: &str, encoding: Option<&str>, body: &[u8], faults: Vec<DecoderError>) -> Vec<String> {
        let headers = encoding.map(|name| ("content-encoding".to_owned(), name.as_bytes().to_vec()));
        let head = RequestHead { method: "PUT".into(), target: path.into(), headers: headers.into_iter().collect() };
        let mut sheet = Sheet::new(0, []);
        super::body(&head, body, faults, &mut sheet);
        let rows = sheet.take();
        rows.lines()
            .map(|line| line.trim_start_matches("| ").split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    /// One singular event half a second before the bundle was sent.
    const BUNDLE: &[u8] = b"\x00\xca\x9a\x3b\0\0\0\0\x00\x94\x35\x77\0\0\0\0a\0\x02\0\0\0\0\0\
        \xc2\x27\xa8\x17\x80\x8c\x4f\xcb\xb7\x97\x21\x00\x2d\x17\xb6\x9a1\0\0\0\0\0\0\0\
        \x00\x65\xcd\x1d\0\0\0\0\x12\x10\x22\0\0\0\0\0\x3b\x12\x12";
    const ROWS: [&str; 18] = [
        "bundle",
        "00000000 00 ca 9a 3b 00 00 00 00 relative_timestamp: 1 s",
        "00000008 00 94 35 77 00 00 00 00 absolute_timestamp: 1970-01-01T00:00:02Z",
        "00000010 61 00 image: \"a\"",
        "site: empty",
        "00000012 02 flags: 0x02 live",
        "00000013 00 00 00 00 00 padding",
        "singular_events: 1 event",
        "event 0",
        "00000018 c2 27 a8 17 80 8c 4f cb b7 97 21 00 2d 17 b6 9a \
         event_id: c227a817-808c-4fcb-b797-21002d17b69a (ParentalControlsEnabled)",
        "00000028 31 00 os_version: \"1\"",
        "0000002a 00 00 00 00 00 00 padding",
        "00000030 00 65 cd 1d 00 00 00 00 relative_timestamp: 500 ms (1970-01-01T00:00:01.5Z)",
        "payload: nothing",
        "00000038 12 10 framing offsets, last member first: 18, 16",
        "0000003a 22 framing offsets: 34",
        "0000003b 00 00 00 00 00 padding",
        "aggregate_events: empty",
    ];

    #[test]
    fn every_byte_of_a_bundle_is_named() {
        let mut expected = ROWS.to_vec();
        expected.push("00000040 3b 12 12 framing offsets, last member first: 59, 18, 18");
        assert_eq!(rows("/3/abc", None, BUNDLE, Vec::new()), expected);
    }

    #[test]
    fn the_path_has_the_version() {
        let body = b"\x05\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\xaa\0\0\0\0\0\0\0\x20\x20\x19";
        let shown = rows("/x/2/abc/", None, body, Vec::new());
        let expected = [
            "00000000 05 00 00 00 send_number: 5",
            "00000004 00 00 00 00 padding",
            "00000008 01 00 00 00 00 00 00 00 relative_timestamp: 1 ns",
            "00000010 02 00 00 00 00 00 00 00 absolute_timestamp: 1970-01-01T00:00:00.000000002Z",
            "00000018 aa machine_id: aa",
        ];
        assert_eq!(shown[1..6], expected);
        assert!(rows("/0/abc", None, body, Vec::new())[1].ends_with("relative_timestamp: 5 ns"));
    }

    #[test]
    fn a_compressed_bundle_follows_its_bytes_with_its_faults() {
        // One stored block (RFC 1951), written by hand.
        let length = BUNDLE.len() as u16;
        let mut crc = flate2::Crc::new();
        crc.update(BUNDLE);
        let gzip = [
            &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1][..],
            &length.to_le_bytes(),
            &(!length).to_le_bytes(),
            BUNDLE,
            &crc.sum().to_le_bytes(),
            &u32::from(length).to_le_bytes(),
        ]
        .concat();
        let fault = || DecoderError { offset: 0x19, text: "malformed".to_owned() };
        let shown = rows("/3/abc", Some("gzip"), &gzip, vec![fault()]);
        assert!(shown[0].ends_with(&format!("gzip: {} bytes inflate to 67", gzip.len())), "{}", shown[0]);
        // Four rows of the compressed bytes, and how many follow.
        assert_eq!(shown[5..15], ROWS[..10]);
        assert_eq!(shown[15], "00000019 !! malformed");
        let shown = rows("/3/abc", Some("gzip"), BUNDLE, vec![fault()]);
        assert!(shown[0].ends_with("gzip: compressed data, at 0: no gzip stream"), "{}", shown[0]);
        assert_eq!(shown.last().map(String::as_str), Some("00000019 !! malformed"));
        let shown = rows("/3/abc", Some("br"), b"abc", Vec::new());
        assert_eq!(shown, ["00000000 61 62 63 ?: neither plain nor gzip"]);
    }
}
