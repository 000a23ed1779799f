//! Where rows stand: how deep they are set in, and from where on their offsets count.

use super::{Fault, Sheet};

/// Deeper than this nothing is set in further: rows would be all margin.
const MOST_DEPTH: usize = 24;

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

/// What `write` writes has offsets from 0 on, as its faults have: those of the sheet, if it begins here.
pub(crate) fn from_zero(faults: Vec<Fault>, sheet: &mut Sheet, write: impl FnOnce(&mut Sheet)) {
    if sheet.offset() == 0 {
        sheet.expect(faults);
        write(sheet);
    } else {
        sheet.inner(faults, write);
    }
}
