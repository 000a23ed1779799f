//! The attributes of events about the heap of a program: of the log of an object, of the end of a dump, and of the samples that
//! sum up a dump or allocations.

use tributary_event::{EventView, KeyView, Name, ValueView, Values, semconv};

use super::{DumpIdentity, HeapObject, Site};

/// What an event says of the heap. A missing attribute, or one with a value of another type, is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapFields<'a> {
    /// The id of the object.
    pub id: Option<u64>,
    /// The class of the objects; internal objects have none.
    pub class: Option<&'a str>,
    /// The site of their allocation, as far as it is known.
    pub file: Option<&'a str>,
    #[allow(missing_docs)]
    pub line: Option<u64>,
    /// The size of the object in bytes.
    pub size: Option<u64>,
    /// The ids of the objects that the object refers to.
    pub references: Option<Values<'a>>,
    /// The number of the dump.
    pub dump: Option<u64>,
    /// The number of objects of the dump, as sent by the peer.
    pub object_count: Option<u64>,
}

impl<'a> HeapFields<'a> {
    /// Reads the attributes of an event.
    pub fn of(event: EventView<'a>) -> Self {
        let mut fields = HeapFields::default();
        for member in event.attribute_members() {
            if let KeyView::Name(name) = member.key() {
                fields.set(name, member.value());
            }
        }
        fields
    }

    /// Sets the field of an attribute. `false`: it is no attribute of the heap.
    pub(super) fn set(&mut self, name: Name, value: ValueView<'a>) -> bool {
        match name {
            semconv::RBKIT_OBJECT_ID => self.id = value.as_u64(),
            semconv::RBKIT_CLASS_NAME => self.class = value.as_text(),
            semconv::CODE_FILE_PATH => self.file = value.as_text(),
            semconv::CODE_LINE_NUMBER => self.line = value.as_u64(),
            semconv::RBKIT_OBJECT_SIZE => self.size = value.as_u64(),
            semconv::RBKIT_OBJECT_REFERENCES => {
                self.references = if let ValueView::Array(ids) = value { Some(ids) } else { None };
            }
            semconv::RBKIT_DUMP_ID => self.dump = value.as_u64(),
            semconv::RBKIT_DUMP_OBJECT_COUNT => self.object_count = value.as_u64(),
            _ => return false,
        }
        true
    }

    /// The site.
    pub fn site(&self) -> Site<'a> {
        Site { file: self.file.map(Into::into), line: self.line }
    }

    /// The dump of `event`, which has these fields. Without a number it is dump 0.
    pub fn identity(&self, event: EventView<'a>) -> DumpIdentity<'a> {
        let origin = event.origin();
        let pid = event.resource().attributes().iter().find(|(key, _)| key == semconv::PROCESS_PID.as_str());
        DumpIdentity {
            peer: (&*origin.peer).into(),
            connection: origin.connection,
            pid: pid.and_then(|(_, pid)| pid.view().as_u64()),
            id: self.dump.unwrap_or(0),
            object_count: self.object_count,
        }
    }

    /// The object. Without an id it is object 0.
    pub fn object(&self, dump: DumpIdentity<'a>) -> HeapObject<'a> {
        HeapObject {
            dump,
            id: self.id.unwrap_or(0),
            class: self.class.map(Into::into),
            site: self.site(),
            size: self.size,
            references: self.references.map_or(0, |ids| ids.count() as u64),
        }
    }
}
