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
    let folded = xml_text(&String::from_utf8_lossy(&folded));
    let mut options = Options::default();
    options.title = xml_text(title);
    options.count_name = counted.things().to_owned();
    // A name that does not fit keeps its beginning, which is what distinguishes it.
    options.text_truncate_direction = TextTruncateDirection::Right;
    // The same input gives the same picture.
    options.deterministic = true;
    from_lines(&mut options, folded.lines(), out)
}

/// The text without the characters that XML does not have: control characters and two others (XML 1.0, section 2.2).
fn xml_text(text: &str) -> String {
    text.replace(
        |c: char| matches!(c, '\0'..' ' if !matches!(c, '\t' | '\n' | '\r')) || matches!(c, '\u{FFFE}' | '\u{FFFF}'),
        "\u{FFFD}",
    )
}

impl Counted {
    /// What folded values are divided by: times are shown in microseconds.
    pub fn folded_divisor(self) -> u64 {
        if self.unit() == "nanoseconds" { 1000 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ProfileFrame, ProfileSample};
    use super::*;

    #[test]
    fn a_flame_graph_is_xml_whatever_the_names_are() {
        let every: String = (0..=0xFFFF).filter_map(char::from_u32).collect();
        let mut stacks = Stacks::default();
        let frames = vec![ProfileFrame { function: Some(every.as_str().into()), ..ProfileFrame::default() }];
        stacks.add(&ProfileSample { value: 1, frames, agent: "p".into(), ..ProfileSample::default() });
        let mut svg = Vec::new();
        write(&stacks, Counted::Cpu, &format!("title {every}"), &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        // The characters of XML 1.0, section 2.2.
        let is_xml =
            |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..);
        assert_eq!(svg.chars().find(|c| !is_xml(*c)), None);
        assert!(svg.contains('\u{FFFD}'));
    }
}
