//! Bytes → borrowed bundles and events. Layouts: section 2.1 of the field notes; framing: section 2.2.
//!
//! Reading a bundle checks its head and the place of every event, so a fault there refuses the whole bundle. The content of
//! an event is read event by event, and its payload later: a fault costs only the part that it is in (section 3).

use tributary_codec::gvariant::{Elements, Slice, Tuple};
use tributary_codec::reader::{DecodeError, DecodeErrorKind};

/// The protocol version in a request's path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs)]
pub enum UploadVersion {
    V0,
    V1,
    V2,
    V3,
}

impl UploadVersion {
    /// The version named by a path segment.
    pub fn by_name(name: &str) -> Option<UploadVersion> {
        match name {
            "0" => Some(UploadVersion::V0),
            "1" => Some(UploadVersion::V1),
            "2" => Some(UploadVersion::V2),
            "3" => Some(UploadVersion::V3),
            _ => None,
        }
    }

    /// The layout that agents of this version send.
    pub fn layout(self) -> BundleLayout {
        match self {
            UploadVersion::V0 | UploadVersion::V1 => BundleLayout::V0,
            UploadVersion::V2 => BundleLayout::V2,
            UploadVersion::V3 => BundleLayout::V3,
        }
    }

    /// The version as written in paths.
    pub fn as_str(self) -> &'static str {
        match self {
            UploadVersion::V0 => "0",
            UploadVersion::V1 => "1",
            UploadVersion::V2 => "2",
            UploadVersion::V3 => "3",
        }
    }
}

/// The layout of a bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BundleLayout {
    /// Versions 0 and 1.
    V0,
    /// As `V0`, with a send number at the front.
    V2,
    /// Version 3 as shipped.
    V3,
    /// Version 3 as drafted in one place of the specification. No agent is known to send it.
    V3Draft,
}

impl BundleLayout {
    /// The type of a whole bundle.
    pub fn type_string(self) -> &'static str {
        match self {
            BundleLayout::V0 => "(xxaya(uayxmv)a(uayxxmv)a(uaya(xmv)))",
            BundleLayout::V2 => "(ixxaya(uayxmv)a(uayxxmv)a(uaya(xmv)))",
            BundleLayout::V3 => "(xxsa{ss}ya(aysxmv)a(ayssumv))",
            BundleLayout::V3Draft => "(isa{ss}bba(aysxmv)a(aysyxxmv))",
        }
    }

    /// Whether events have a user id, and no OS version.
    pub fn has_users(self) -> bool {
        matches!(self, BundleLayout::V0 | BundleLayout::V2)
    }

    /// Bytes at the front that each attempt to send writes with new values (rule 21).
    pub fn stamp_bytes(self) -> usize {
        match self {
            BundleLayout::V0 | BundleLayout::V3 => 16,
            BundleLayout::V2 => 24,
            BundleLayout::V3Draft => 0,
        }
    }
}

/// A bundle with a valid head and valid places of all events.
#[derive(Clone, Copy, Debug)]
pub struct Bundle<'a> {
    /// The members before the events.
    pub head: BundleHead<'a>,
    /// The arrays of events, in the order of [`Section`].
    pub sections: [Slice<'a>; 3],
}

/// The members of a bundle before its events.
#[derive(Clone, Copy, Debug, Default)]
pub struct BundleHead<'a> {
    /// The number of attempts to send (version 2).
    pub send_number: Option<i32>,
    /// The agent's clocks when it sent the bundle; `None` in the draft.
    pub clocks: Option<Clocks>,
    /// The machine id (versions 0 to 2): normally 16 bytes.
    pub machine_id: Option<&'a [u8]>,
    /// The installation (version 3).
    pub channel: Option<Channel<'a>>,
}

/// The two clocks of an agent, at the same moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clocks {
    /// Nanoseconds of a monotonic clock that continues over reboots. May be negative.
    pub relative: i64,
    /// Nanoseconds since 1970.
    pub absolute: i64,
}

/// The kind of installation that sent a bundle.
#[derive(Clone, Copy, Debug)]
pub struct Channel<'a> {
    /// The image id.
    pub image: &'a str,
    /// The machine's location: entries for [`site_entry`].
    pub site: Elements<'a>,
    /// The length of `site` in bytes.
    pub site_bytes: usize,
    /// Whether another operating system is installed too.
    pub is_dual_boot: bool,
    /// Whether it runs from a removable disk.
    pub is_live: bool,
}

/// The kinds of events, in the order of a bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Section {
    Singular,
    Aggregate,
    Sequence,
}

impl Section {
    /// In the order of a bundle.
    pub const ALL: [Section; 3] = [Section::Singular, Section::Aggregate, Section::Sequence];

    /// The protocol's name for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Section::Singular => "singular event",
            Section::Aggregate => "aggregate event",
            Section::Sequence => "event sequence",
        }
    }
}

/// The alignment of events in bytes.
const EVENT_ALIGNMENT: usize = 8;

/// Reads a bundle.
///
/// # Errors
/// The fault that refuses the whole bundle.
pub fn bundle(body: &[u8], layout: BundleLayout) -> Result<Bundle<'_>, DecodeError> {
    let whole = Slice::new(body);
    let mut members = Tuple::new(whole, 3, "bundle")?;
    let mut head = BundleHead::default();
    if matches!(layout, BundleLayout::V2 | BundleLayout::V3Draft) {
        head.send_number = Some(i32::from_le_bytes(members.array("send_number")?));
    }
    if layout != BundleLayout::V3Draft {
        let relative = i64::from_le_bytes(members.array("relative_timestamp")?);
        let absolute = i64::from_le_bytes(members.array("absolute_timestamp")?);
        head.clocks = Some(Clocks { relative, absolute });
    }
    if layout.has_users() {
        head.machine_id = Some(members.variable(1, "machine_id")?.bytes());
    } else {
        head.channel = Some(channel(&mut members, layout)?);
    }
    let singular = members.variable(EVENT_ALIGNMENT, "singular_events")?;
    let (aggregate, sequence) = if layout.has_users() {
        let aggregate = members.variable(EVENT_ALIGNMENT, "aggregate_events")?;
        (aggregate, members.last(EVENT_ALIGNMENT, "event_sequences")?)
    } else {
        (members.last(EVENT_ALIGNMENT, "aggregate_events")?, Slice::new(&[]))
    };
    let sections = [singular, aggregate, sequence];
    for (section, kind) in sections.into_iter().zip(Section::ALL) {
        events(section, kind)?.check()?;
    }
    Ok(Bundle { head, sections })
}

/// The events of one kind, from its slice in [`Bundle::sections`].
///
/// # Errors
/// A framing fault; never for a bundle that [`bundle`] returned.
pub fn events(section: Slice<'_>, kind: Section) -> Result<Elements<'_>, DecodeError> {
    Elements::new(section, EVENT_ALIGNMENT, kind.as_str())
}

fn channel<'a>(members: &mut Tuple<'a>, layout: BundleLayout) -> Result<Channel<'a>, DecodeError> {
    let image = members.variable(1, "image")?.string("image")?;
    let entries = members.variable(1, "site")?;
    let site = Elements::new(entries, 1, "site")?;
    let mut unread = site;
    while let Some(entry) = unread.read()? {
        site_entry(entry)?;
    }
    let (is_dual_boot, is_live) = if layout == BundleLayout::V3 {
        // Bits 2 to 7 have no meaning (rule 19).
        let [flags] = members.array("flags")?;
        (flags & 1 != 0, flags & 2 != 0)
    } else {
        (flag(members, "dual_boot")?, flag(members, "live")?)
    };
    Ok(Channel { image, site, site_bytes: entries.len(), is_dual_boot, is_live })
}

fn flag(members: &mut Tuple<'_>, field: &'static str) -> Result<bool, DecodeError> {
    let byte = members.fixed(1, 1, field)?;
    match byte.bytes() {
        [0] => Ok(false),
        [1] => Ok(true),
        other => {
            let found = other.first().map_or(0, |byte| u64::from(*byte));
            let kind = DecodeErrorKind::Invalid { found, expected: "0 or 1" };
            Err(DecodeError { field, offset: byte.offset(), kind })
        }
    }
}

/// Key and value of one site entry.
///
/// # Errors
/// It is not in normal form.
pub fn site_entry(entry: Slice<'_>) -> Result<(&str, &str), DecodeError> {
    let mut members = Tuple::new(entry, 1, "site")?;
    let key = members.variable(1, "site.key")?.string("site.key")?;
    Ok((key, members.last(1, "site.value")?.string("site.value")?))
}

/// The members that events of every kind have.
#[derive(Clone, Copy, Debug)]
pub struct EventHead<'a> {
    /// The event id: normally 16 bytes, a UUID (rule 14).
    pub id: &'a [u8],
    /// The unix user (versions 0 to 2).
    pub user_id: Option<u32>,
    /// The OS version (version 3).
    pub os_version: Option<&'a str>,
}

/// A singular event: it happened once.
#[derive(Clone, Copy, Debug)]
pub struct Singular<'a> {
    /// The common members.
    pub head: EventHead<'a>,
    /// When it happened, on the clock of [`Clocks::relative`].
    pub relative: i64,
    /// The payload, a maybe of a variant.
    pub payload: Slice<'a>,
}

/// An aggregate event: a count.
#[derive(Clone, Copy, Debug)]
pub struct Aggregate<'a> {
    /// The common members.
    pub head: EventHead<'a>,
    /// When it was counted.
    pub when: When<'a>,
    /// The count; for some events a number of seconds. Zero and negative values are valid.
    pub count: i64,
    /// The payload, a maybe of a variant.
    pub payload: Slice<'a>,
}

/// The time of an aggregate.
#[derive(Clone, Copy, Debug)]
pub enum When<'a> {
    /// On the clock of [`Clocks::relative`] (versions 0 to 2).
    Relative(i64),
    /// A day or month as text (version 3).
    Period(&'a str),
    /// The letter of the period's length, and its start in nanoseconds since 1970 (draft).
    Started(u8, i64),
}

/// An event sequence: something with a duration (versions 0 to 2).
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// The common members.
    pub head: EventHead<'a>,
    /// Its items, for [`item`].
    pub items: Elements<'a>,
}

/// Reads a singular event.
///
/// # Errors
/// The fault that costs this event.
pub fn singular(event: Slice<'_>, layout: BundleLayout) -> Result<Singular<'_>, DecodeError> {
    let mut members = Tuple::new(event, if layout.has_users() { 1 } else { 2 }, "event")?;
    let head = event_head(&mut members, layout)?;
    let relative = i64::from_le_bytes(members.array("event.relative_timestamp")?);
    Ok(Singular { head, relative, payload: members.last(8, "event.payload")? })
}

/// Reads an aggregate event.
///
/// # Errors
/// The fault that costs this event.
pub fn aggregate(event: Slice<'_>, layout: BundleLayout) -> Result<Aggregate<'_>, DecodeError> {
    let offsets = match layout {
        BundleLayout::V0 | BundleLayout::V2 => 1,
        BundleLayout::V3Draft => 2,
        BundleLayout::V3 => 3,
    };
    let mut members = Tuple::new(event, offsets, "event")?;
    let head = event_head(&mut members, layout)?;
    let (count, when) = match layout {
        BundleLayout::V0 | BundleLayout::V2 => {
            // The count comes first (section 2.1); the draft of these versions has it second.
            let count = i64::from_le_bytes(members.array("event.count")?);
            (count, When::Relative(i64::from_le_bytes(members.array("event.relative_timestamp")?)))
        }
        BundleLayout::V3 => {
            let period = members.variable(1, "event.period")?.string("event.period")?;
            let count = u32::from_le_bytes(members.array("event.count")?);
            (i64::from(count), When::Period(period))
        }
        BundleLayout::V3Draft => {
            let [period] = members.array("event.period")?;
            let start = i64::from_le_bytes(members.array("event.timestamp")?);
            (i64::from_le_bytes(members.array("event.count")?), When::Started(period, start))
        }
    };
    Ok(Aggregate { head, when, count, payload: members.last(8, "event.payload")? })
}

/// Reads an event sequence, and checks all of its items.
///
/// # Errors
/// The fault that costs this sequence.
pub fn sequence(event: Slice<'_>, layout: BundleLayout) -> Result<Sequence<'_>, DecodeError> {
    let sequence = unchecked_sequence(event, layout)?;
    let mut unread = sequence.items;
    while let Some(slice) = unread.read()? {
        item(slice)?;
    }
    Ok(sequence)
}

/// Reads an event sequence, in constant time: its items are not checked.
///
/// # Errors
/// The fault that costs this sequence, except one in an item.
pub fn unchecked_sequence(event: Slice<'_>, layout: BundleLayout) -> Result<Sequence<'_>, DecodeError> {
    let mut members = Tuple::new(event, 1, "event")?;
    let head = event_head(&mut members, layout)?;
    let items = Elements::new(members.last(EVENT_ALIGNMENT, "event.items")?, EVENT_ALIGNMENT, "event.items")?;
    Ok(Sequence { head, items })
}

/// Time and payload of one item of a sequence.
///
/// # Errors
/// It is not in normal form.
pub fn item(item: Slice<'_>) -> Result<(i64, Slice<'_>), DecodeError> {
    let mut members = Tuple::new(item, 0, "event.item")?;
    let relative = i64::from_le_bytes(members.array("event.item.relative_timestamp")?);
    Ok((relative, members.last(8, "event.item.payload")?))
}

fn event_head<'a>(members: &mut Tuple<'a>, layout: BundleLayout) -> Result<EventHead<'a>, DecodeError> {
    let user_id = match layout.has_users() {
        true => Some(u32::from_le_bytes(members.array("event.user_id")?)),
        false => None,
    };
    let id = members.variable(1, "event.id")?.bytes();
    let os_version = match layout.has_users() {
        true => None,
        false => Some(members.variable(1, "event.os_version")?.string("event.os_version")?),
    };
    Ok(EventHead { id, user_id, os_version })
}
