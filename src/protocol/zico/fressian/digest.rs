//! The identity of a trace or a scan: what does not change when an agent sends it again (section 6.5).

use std::ops::Range;

use ring::digest::{Context, SHA256};

use tributary_codec::fressian::{Definitions as FressianDefinitions, FressianItem, FressianReader};

use super::super::symbols::{Symbols, placeholder};
use super::structs::RecordHead;

/// A digest. Its bytes are the id of a trace.
pub(in super::super) type RecordDigest = [u8; 16];

/// The digest of a top-level record: host, class, method, signature, type, clock, time, attributes. Not calls and flags, which
/// the agent may still change.
pub(super) fn of_record(
    host: &str,
    head: &RecordHead,
    body: &[u8],
    symbols: &mut Symbols<'_>,
    known: &mut FressianDefinitions,
) -> RecordDigest {
    let mut context = Context::new(&SHA256);
    update(&mut context, b"record");
    update(&mut context, host.as_bytes());
    let trace_type = head.marker.map_or(0, |marker| marker.trace_type);
    for id in head.parts.into_iter().chain([trace_type]) {
        match symbols.string(id) {
            Some(symbol) => update(&mut context, symbol.text.as_bytes()),
            None => update(&mut context, placeholder(id).as_bytes()),
        }
    }
    context.update(&head.marker.map_or(0, |marker| marker.clock).to_be_bytes());
    context.update(&head.nanos.to_be_bytes());
    if let Some(range) = head.attributes.clone() {
        values(&mut context, body, range, known);
    }
    finish(context)
}

/// The digest of a perf record, which takes this range.
pub(super) fn of_scan(host: &str, body: &[u8], range: Range<usize>, known: &mut FressianDefinitions) -> RecordDigest {
    let mut context = Context::new(&SHA256);
    update(&mut context, b"scan");
    update(&mut context, host.as_bytes());
    values(&mut context, body, range, known);
    finish(context)
}

/// The bytes of values, with the tags of structs for their numbers: those depend on what the packet has before.
fn values(context: &mut Context, body: &[u8], range: Range<usize>, known: &mut FressianDefinitions) {
    let mut reader = FressianReader::at(body, range.start);
    let mut plain = range.start;
    while reader.offset() < range.end {
        let start = reader.offset();
        // They were checked when they were read.
        let Ok(item) = reader.item(known) else { break };
        if let FressianItem::Struct(tag, _) = item {
            context.update(&body[plain..start]);
            update(context, tag);
            plain = reader.offset();
        }
    }
    context.update(body.get(plain..range.end).unwrap_or_default());
}

fn update(context: &mut Context, bytes: &[u8]) {
    context.update(&(bytes.len() as u64).to_be_bytes());
    context.update(bytes);
}

fn finish(context: Context) -> RecordDigest {
    context.finish().as_ref().first_chunk().copied().unwrap_or([1; 16])
}
