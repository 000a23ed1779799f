//! Rows that are set in as deep as something else is open.

use super::Sheet;

/// Deeper than this nothing is set in further: rows would be all margin.
const MOST_DEPTH: usize = 16;

/// What `write` writes is set in so many times, within reason.
pub(crate) fn set_in<T>(sheet: &mut Sheet, depth: usize, write: impl FnOnce(&mut Sheet) -> T) -> Option<T> {
    let (mut write, mut written) = (Some(write), None);
    descend(sheet, depth.min(MOST_DEPTH), &mut |sheet| written = write.take().map(|write| write(sheet)));
    written
}

fn descend(sheet: &mut Sheet, depth: usize, write: &mut dyn FnMut(&mut Sheet)) {
    match depth {
        0 => write(sheet),
        _ => sheet.nested(|sheet| descend(sheet, depth - 1, write)),
    }
}
