//! Flame graphs: an SVG of summed stacks, drawn by the inferno crate.

use std::io::{self, Write};

use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use super::Counted;
use super::stacks::Stacks;

/// Frames with less than 1/10,000 of the total are not drawn: they would be a tenth of a pixel wide.
const MIN_SHARE: u64 = 10_000;

/// Draws a flame graph.
///
/// # Errors
/// Writing to `out` failed, or there is nothing to draw.
pub fn write(stacks: &Stacks, counted: Counted, title: &str, out: &mut impl Write) -> io::Result<()> {
    // The crate does not check for overflow.
    if i64::try_from(stacks.totals()[counted.column()]).is_err() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the samples add up to more than can be drawn"));
    }
    let mut folded = Vec::new();
    stacks.write_folded(counted.column(), counted.folded_divisor(), Some(MIN_SHARE), &mut folded)?;
    let folded = String::from_utf8_lossy(&folded);
    let mut options = Options::default();
    options.title = title.to_owned();
    options.count_name = counted.things().to_owned();
    // A name that does not fit keeps its beginning, which is what distinguishes it.
    options.text_truncate_direction = TextTruncateDirection::Right;
    // The same input gives the same picture.
    options.deterministic = true;
    from_lines(&mut options, folded.lines(), out)
}

impl Counted {
    /// What folded values are divided by: times are shown in microseconds.
    pub fn folded_divisor(self) -> u64 {
        if self == Counted::Wall { 1000 } else { 1 }
    }
}
