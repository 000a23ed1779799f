//! Parsed type strings in a flat layout, so that a type is parsed once and walked many times.

use crate::reader::DecodeError;

use super::Slice;

/// The deepest nesting of containers in a type string.
pub const MAX_NESTING: usize = 128;

/// One type: a basic one, or a container followed by its parts.
#[derive(Clone, Copy, Debug)]
pub struct TypeNode {
    /// Its first character.
    pub code: u8,
    /// 1, 2, 4 or 8.
    pub alignment: u8,
    /// Its nesting depth; 1 for a basic type.
    pub levels: u8,
    /// Index of the node after all of its parts.
    pub next: u32,
    /// Size of a value in bytes; 0 if it is variable.
    pub size: u32,
    /// In a tuple or entry: number of members with a stored end.
    pub offsets: u32,
}

/// Parses exactly one complete type and appends its nodes.
///
/// # Errors
/// It is not one complete type, or it is nested too deep.
pub fn parse(text: Slice<'_>, nodes: &mut Vec<TypeNode>) -> Result<(), DecodeError> {
    match parse_one(text, 0, MAX_NESTING, nodes)? {
        end if end == text.len() => Ok(()),
        end => Err(bad(text, end)),
    }
}

/// Whether the text is a sequence of complete types, as a value of type `g` is.
pub(super) fn is_signature(text: &str, nodes: &mut Vec<TypeNode>) -> bool {
    let (slice, mark) = (Slice::new(text.as_bytes()), nodes.len());
    let mut at = 0;
    while at < text.len() {
        let parsed = parse_one(slice, at, MAX_NESTING, nodes);
        nodes.truncate(mark);
        match parsed {
            Ok(end) => at = end,
            Err(_) => return false,
        }
    }
    true
}

/// Parses the type at `at`; returns its end.
fn parse_one(text: Slice<'_>, at: usize, nesting: usize, nodes: &mut Vec<TypeNode>) -> Result<usize, DecodeError> {
    let Some(&code) = text.bytes().get(at) else { return Err(bad(text, at)) };
    let index = nodes.len();
    let fixed = |size: u32| TypeNode { code, alignment: size as u8, levels: 1, next: 0, size, offsets: 0 };
    let variable = |alignment| TypeNode { code, alignment, levels: 1, next: 0, size: 0, offsets: 0 };
    nodes.push(match code {
        b'y' | b'b' => fixed(1),
        b'n' | b'q' => fixed(2),
        b'i' | b'u' | b'h' => fixed(4),
        b'x' | b't' | b'd' => fixed(8),
        b's' | b'o' | b'g' => variable(1),
        b'v' => variable(8),
        b'm' | b'a' | b'(' | b'{' if nesting == 0 => {
            return Err(text.fault(
                "gvariant.type",
                at,
                MAX_NESTING as u64 + 1,
                "at most 128 containers in one another",
            ));
        }
        b'm' | b'a' | b'(' | b'{' => variable(1),
        _ => return Err(bad(text, at)),
    });
    let end = match code {
        b'm' | b'a' => {
            let end = parse_one(text, at + 1, nesting - 1, nodes)?;
            let child = nodes[index + 1];
            nodes[index].alignment = child.alignment;
            nodes[index].levels = child.levels + 1;
            end
        }
        b'(' => parse_members(text, at + 1, b')', nesting - 1, nodes)?,
        b'{' => {
            if text.bytes().get(at + 1).is_some_and(|key| b"mav({}".contains(key)) {
                return Err(bad(text, at + 1));
            }
            let end = parse_members(text, at + 1, b'}', nesting - 1, nodes)?;
            let value = nodes[index + 1].next as usize;
            if value >= nodes.len() || nodes[value].next as usize != nodes.len() {
                return Err(bad(text, end - 1));
            }
            end
        }
        _ => at + 1,
    };
    let Ok(next) = u32::try_from(nodes.len()) else { return Err(bad(text, at)) };
    nodes[index].next = next;
    if matches!(code, b'(' | b'{') {
        lay_out(index, nodes).ok_or_else(|| bad(text, at))?;
    }
    Ok(end)
}

/// Parses members up to and including `close`.
fn parse_members(
    text: Slice<'_>,
    mut at: usize,
    close: u8,
    nesting: usize,
    nodes: &mut Vec<TypeNode>,
) -> Result<usize, DecodeError> {
    while text.bytes().get(at) != Some(&close) {
        at = parse_one(text, at, nesting, nodes)?;
    }
    Ok(at + 1)
}

/// Size, alignment and offsets of the tuple or entry at `index`. `None`: its size overflows.
fn lay_out(index: usize, nodes: &mut [TypeNode]) -> Option<()> {
    let end = nodes[index].next as usize;
    let (mut size, mut is_fixed, mut offsets) = (0u32, true, 0);
    let (mut alignment, mut levels) = (1, 0);
    let mut at = index + 1;
    while at < end {
        let member = nodes[at];
        alignment = alignment.max(member.alignment);
        levels = levels.max(member.levels);
        at = member.next as usize;
        if member.size == 0 {
            is_fixed = false;
            offsets += u32::from(at < end);
        } else {
            size = size.checked_next_multiple_of(u32::from(member.alignment))?.checked_add(member.size)?;
        }
    }
    let size = if is_fixed { size.max(1).checked_next_multiple_of(u32::from(alignment))? } else { 0 };
    nodes[index] = TypeNode { alignment, levels: levels + 1, size, offsets, ..nodes[index] };
    Some(())
}

fn bad(text: Slice<'_>, at: usize) -> DecodeError {
    let found = text.bytes().get(at).map_or(0, |byte| u64::from(*byte));
    text.fault("gvariant.type", at, found, "one complete type")
}
