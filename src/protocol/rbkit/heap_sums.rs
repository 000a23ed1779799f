//! A heap dump summed up by class and site (`heap = "summary"`): two samples for each of them instead of an event for each
//! object.

use foldhash::quality::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::EntryRef;

use tributary_event::{Number, SampleData};
use tributary_protocol::{Now, Output};

use super::normalize::{self, DumpOf, Site, StreamPosition};
use super::options::SummaryLimits;
use super::texts::TextCache;
use super::wire::DumpObject;

/// Longer texts are not kept; their objects count without class and site.
const MAX_TEXT_BYTES: usize = 4096;
/// Bytes of a row besides its texts.
const ROW_BYTES: usize = size_of::<(Vec<u8>, SiteSums)>() + 16;

/// The sums of a dump, while its objects arrive and until they are written.
#[derive(Debug)]
pub(super) struct HeapSums {
    max_rows: usize,
    rows: HashMap<Vec<u8>, SiteSums, RandomState>,
    key_bytes: usize,
    /// The objects without a row, because there are too many.
    others: SiteSums,
    key: Vec<u8>,
    /// A dump that has ended, while it is written.
    ended: Option<EndedDump>,
}

/// The sums of a class and site.
#[derive(Clone, Copy, Debug, Default)]
struct SiteSums {
    objects: u64,
    bytes: u64,
}

#[derive(Debug)]
struct EndedDump {
    dump: DumpOf,
    place: StreamPosition,
    is_whole: bool,
    rows: std::vec::IntoIter<(Vec<u8>, SiteSums)>,
    /// Of the current row: whether its objects are written.
    current: Option<(Vec<u8>, SiteSums, bool)>,
    others: SiteSums,
}

impl HeapSums {
    pub(super) fn new(limits: SummaryLimits) -> HeapSums {
        HeapSums {
            max_rows: limits.max_sites,
            rows: HashMap::default(),
            key_bytes: 0,
            others: SiteSums::default(),
            key: Vec::new(),
            ended: None,
        }
    }

    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        let ended = self.ended.as_ref().map_or(0, |ended| ended.rows.len() * ROW_BYTES);
        self.rows.capacity() * ROW_BYTES + self.key_bytes + ended + self.key.capacity()
    }

    /// Whether a dump that has ended is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.ended.is_some()
    }

    /// Counts an object. Without memory it gets no new row.
    pub(super) fn add(&mut self, object: &DumpObject<'_>, has_memory: bool) {
        let DumpObject { class, file, line, size, .. } = *object;
        write_key(&mut self.key, class, file, line);
        let has_space = self.rows.len() < self.max_rows && self.key.len() <= MAX_TEXT_BYTES && has_memory;
        let row = match self.rows.entry_ref(&*self.key) {
            EntryRef::Occupied(row) => row.into_mut(),
            EntryRef::Vacant(row) if has_space => {
                self.key_bytes += self.key.len();
                row.insert(SiteSums::default())
            }
            EntryRef::Vacant(_) => &mut self.others,
        };
        row.objects += 1;
        row.bytes = row.bytes.saturating_add(size.unwrap_or(0));
    }

    /// The dump has ended; what was counted is written next.
    pub(super) fn end(&mut self, dump: DumpOf, is_whole: bool, place: StreamPosition) {
        let mut rows: Vec<_> = std::mem::take(&mut self.rows).into_iter().collect();
        // The order of a map is random.
        rows.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let others = std::mem::take(&mut self.others);
        self.ended = Some(EndedDump { dump, place, is_whole, rows: rows.into_iter(), current: None, others });
        self.key_bytes = 0;
    }

    /// Writes the next event of the dump that has ended: its samples, and then that it is complete. `false`: there is none.
    pub(super) fn write_next(&mut self, now: Now, texts: &mut TextCache, out: &mut Output) -> bool {
        let Some(ended) = &mut self.ended else { return false };
        let place = StreamPosition { now, ..ended.place };
        if ended.current.is_none() {
            ended.current = ended.rows.next().map(|(key, row)| (key, row, false));
        }
        if ended.current.is_none() && ended.others.objects > 0 {
            ended.current = Some((Vec::new(), std::mem::take(&mut ended.others), false));
        }
        let Some((key, row, has_objects)) = ended.current.take() else {
            if ended.is_whole {
                normalize::dump_complete(out, ended.dump, place);
            }
            self.ended = None;
            return true;
        };
        let is_others = key.is_empty();
        let (class, site) = if is_others { (None, Site::default()) } else { read_key(&key) };
        let (sample_type, unit, value) = match has_objects {
            false => ("inuse_objects", "count", row.objects),
            true => ("inuse_space", "bytes", row.bytes),
        };
        let incomplete = match (is_others, ended.is_whole) {
            (true, _) => Some("sites"),
            (false, false) => Some("objects"),
            (false, true) => None,
        };
        let sample = SampleData::new(sample_type, unit, Number::U64(value));
        normalize::heap_sum(out, ended.dump, (class, site), sample, incomplete, texts, place);
        if !has_objects {
            ended.current = Some((key, row, true));
        }
        true
    }
}

/// Class, file and line as one key: which of them are there, the line, the length of the class, the class, the file.
fn write_key(key: &mut Vec<u8>, class: Option<&[u8]>, file: Option<&[u8]>, line: Option<u64>) {
    key.clear();
    let line = line.filter(|line| *line != 0);
    key.push(u8::from(class.is_some()) | u8::from(file.is_some()) << 1);
    key.extend_from_slice(&line.unwrap_or(0).to_be_bytes());
    let class = class.unwrap_or_default();
    key.extend_from_slice(&(class.len() as u64).to_be_bytes());
    key.extend_from_slice(class);
    key.extend_from_slice(file.unwrap_or_default());
}

fn read_key(key: &[u8]) -> (Option<&[u8]>, Site<'_>) {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let (head, texts) = key.split_at_checked(17).unwrap_or((&[0; 17], &[]));
    let class_len = usize::try_from(number(&head[9..17])).unwrap_or(usize::MAX);
    let (class, file) = texts.split_at_checked(class_len).unwrap_or((texts, &[]));
    let line = Some(number(&head[1..9])).filter(|line| *line != 0);
    let file = (head[0] & 2 != 0).then_some(file);
    ((head[0] & 1 != 0).then_some(class), Site { file, line, ..Site::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_what_is_there_and_what_is_missing() {
        let mut key = Vec::new();
        for (class, file, line) in [
            (Some(&b"String"[..]), Some(&b"/a.rb"[..]), Some(7)),
            (None, None, None),
            (Some(b""), Some(b""), None),
            (None, Some(b"/a.rb"), Some(u64::MAX)),
            (Some(b"\xff"), None, Some(1)),
        ] {
            write_key(&mut key, class, file, line);
            let (read, site) = read_key(&key);
            assert_eq!((read, site.file, site.line), (class, file, line));
        }
    }
}
