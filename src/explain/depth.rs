//! Rows that are indented by the depth of open containers.

use super::Sheet;

/// The deepest indentation.
const MAX_INDENT: usize = 16;

/// Indents what `write` writes by `depth` levels, at most `MAX_INDENT`.
pub fn set_in<T>(sheet: &mut Sheet, depth: usize, write: impl FnOnce(&mut Sheet) -> T) -> Option<T> {
    let (mut write, mut written) = (Some(write), None);
    descend(sheet, depth.min(MAX_INDENT), &mut |sheet| written = write.take().map(|write| write(sheet)));
    written
}

fn descend(sheet: &mut Sheet, depth: usize, write: &mut dyn FnMut(&mut Sheet)) {
    match depth {
        0 => write(sheet),
        _ => sheet.nested(|sheet| descend(sheet, depth - 1, write)),
    }
}
